import sys

from tests.simulation import command

sys.exit(command.main())
