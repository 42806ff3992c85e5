"""The platform as its processes load it.

`dutiful worker examples.practice.main:app`, `dutiful server examples.practice.main:app`, and its site for any ASGI
server: `uvicorn examples.practice.main:site`. `python -m examples.practice --world` serves what they talk to.
"""

import os
from pathlib import Path

from examples.practice.firms import Firms
from examples.practice.platform import Addresses
from examples.practice.sample_data import PEOPLE, add_clients, add_people, connect
from examples.practice.service import practice_app
from examples.practice.site import practice_site

firms = Firms(Path(os.environ.get("PRACTICE_FOLDER", "practice-data")))
add_people(firms)
for firm_id in PEOPLE:
    add_clients(firms.firm(firm_id))
    connect(firms.firm(firm_id))
addresses = Addresses.read(os.environ)
app = practice_app(None, firms, addresses)
site = practice_site(app, firms, addresses)
