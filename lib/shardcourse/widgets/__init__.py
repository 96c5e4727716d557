"""What a reader may play with: controls, and a figure that answers. One file a widget.

    Planner()                               will it fit, how fast will it be, what limits it: memory, time and words
    BucketSlider(measure, predicted_s)      each move trains on real ranks, and adds a point
    ShardingExplorer()                      who holds which elements at each moment of a step, as found on real ranks

In a notebook without a kernel (on the web, printed, executed by papermill) each is the figure that it showed when its
cell ran.
"""

from shardcourse.widgets.bucket_slider import BucketSlider
from shardcourse.widgets.planner import Planner
from shardcourse.widgets.sharding_explorer import ShardingExplorer

__all__ = ["BucketSlider", "Planner", "ShardingExplorer"]
