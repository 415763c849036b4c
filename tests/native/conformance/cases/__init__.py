"""All cases of the conformance suite."""

from tests.native.conformance.cases.blocks import BLOCKS
from tests.native.conformance.cases.lives import LIVES
from tests.native.conformance.cases.servers import SERVERS
from tests.native.conformance.cases.statics import STATICS
from tests.native.conformance.cases.steps import STEPS
from tests.native.conformance.cases.values import VALUES

CASES = (*BLOCKS, *VALUES, *STEPS, *LIVES, *SERVERS, *STATICS)
