"""The variable for the first node is empty."""

import os

from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

parse_rendezvous_endpoint(f"{os.environ.get('NO_SUCH_HEAD', '')}:29500", default_port=29500)
