"""The page of the wire says which protocol it is of."""

import re

from smidgen.edge_client.wire.messages import PROTOCOL
from tests.docs.pages import ROOT


def test_the_page_of_the_wire_is_of_this_protocol() -> None:
    page = (ROOT / "docs/reference/wire.md").read_text()
    told = re.findall(r"Protocol (\d+)|Smidgen-Protocol: (\d+)", page)
    assert len(told) >= 2 and {number for one in told for number in one if number} == {
        str(PROTOCOL)
    }
