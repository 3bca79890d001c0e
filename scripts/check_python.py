"""Say in one line if this Python is too old for the set-up."""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        "Python 3.11 or newer is needed, this is %d.%d: name one with "
        "`make PYTHON=/path/to/python3.11 ...`" % sys.version_info[:2]
    )
