"""The notebooks of the course: the form they are kept in, what all of them have, and how they are run.

Read in this order: `tidy` (the form in which a notebook is committed), `lint` (what every lesson has), `executed` (what
an executed lesson must not put out, and whether its prose says what its cells say), `run` (papermill, a table, JSON).
"""

import sys

# A grammar of addresses that nbformat's jsonschema would compile at import: 2.5 seconds for what no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)
