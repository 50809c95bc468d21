#!/usr/bin/env bash
# Put smidgen on this board from a wheelhouse folder, offline, as root; README.md walks through it.
#   install.sh WHEELHOUSE [--env FILE] [--token-file FILE] [--root DIR]
#   install.sh --rollback | --uninstall [--purge]
# Run again, it changes nothing; with a newer wheelhouse, it upgrades.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
if ! command -v python3 > /dev/null; then
  echo "install.sh: no python3 here; apt-get install python3 (any from 3.6 on)" >&2
  exit 2
fi
export LC_ALL=C.UTF-8 # Python 3.6 would take files' names for ASCII else
exec python3 -B "$here/installer" "$@"
