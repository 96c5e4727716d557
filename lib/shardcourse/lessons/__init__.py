"""The notebooks of the course: the form in which they are stored, the rules that they keep, and how they are run.

Read in this order: `tidy` (the form in which a notebook is committed), `lint` (the rules for every lesson), `executed`
(checks of an executed lesson's outputs and of the numbers in its prose), `run` (papermill, a table, JSON).
"""

import sys

# nbformat's jsonschema would compile this grammar of addresses at import: 2.5 seconds, and no notebook needs it.
sys.modules.setdefault("rfc3987_syntax", None)
