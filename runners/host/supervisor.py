"""By this name an agent of a former version, under which the package was replaced, starts the supervisors of its leases."""

import sys

from ..lease.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
