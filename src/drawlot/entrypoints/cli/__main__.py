"""`python -m drawlot.entrypoints.cli`: the command line, where the script `drawlot` is not on the path."""

import sys

from drawlot.entrypoints.cli import main

sys.exit(main())
