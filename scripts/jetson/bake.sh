#!/usr/bin/env bash
# Put smidgen into an L4T root file system, before NVIDIA's flash tool writes it to boards, as root:
#   bake.sh WHEELHOUSE Linux_for_Tegra/rootfs --env FILE
# No token and no identity get into the image: each board draws its own key when it first enrols.
set -euo pipefail
wheelhouse=${1:?name the wheelhouse: bake.sh WHEELHOUSE ROOTFS --env FILE}
rootfs=${2:?name the root file system: bake.sh WHEELHOUSE ROOTFS --env FILE}
shift 2
here=$(dirname "$(readlink -f "$0")")
exec bash "$here/install.sh" "$wheelhouse" --root "$rootfs" --image "$@"
