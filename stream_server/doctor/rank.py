"""One rank of the job by which `stream-study doctor` sees whether mpirun and the MPI here belong together.

mpirun -n 2 python -P -m stream_server.doctor.rank       a line with the size of the world, or with what is wrong
python -P -m stream_server.doctor.rank --name            the MPI that is loaded, without starting it
"""

import json
import sys

from stream_server.errors import StreamServerError
from stream_server.server.ranks.communicator import mpi_library, ranks_from_environment


def main(argv: list[str]) -> int:
    """Print one line of JSON; returns the exit status."""
    try:
        answer = {"mpi": mpi_library()} if argv else {"size": ranks_from_environment().size}
    except StreamServerError as error:
        answer = {"problem": str(error)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
