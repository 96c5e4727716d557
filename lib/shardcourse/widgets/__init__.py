"""Interactive widgets: controls, and a figure that follows them. One file for each widget.

    Planner()                               does a job fit, how fast is it, what limits it: memory, time and words
    BucketSlider(measure, predicted_s)      each move trains on real ranks and adds a point
    ShardingExplorer()                      the elements that each rank holds at each moment, found on real ranks

In a notebook without a kernel (on the web, printed, executed by papermill) a widget is the figure that it showed when
its cell ran.
"""

from shardcourse.widgets.bucket_slider import BucketSlider
from shardcourse.widgets.planner import Planner
from shardcourse.widgets.sharding_explorer import ShardingExplorer

__all__ = ["BucketSlider", "Planner", "ShardingExplorer"]
