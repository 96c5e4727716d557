"""A toy device for lesson 12: a queue of kernels that sleep. As on a GPU, the host launches a kernel and goes on."""

import queue
import threading
import time


class ToyDevice:
    """One queue and one worker. `launch` returns at once; `item` waits for all kernels, as `tensor.item()` does.

    `busy_s` is the sum of the kernels' times. Use it in a `with`: leaving the block ends the worker.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._kernels: queue.Queue[float | None] = queue.Queue()
        self._worker = threading.Thread(target=self._work, daemon=True)

    def launch(self, seconds: float) -> None:
        """Put a kernel of this length into the queue."""
        self._kernels.put(seconds)

    def item(self) -> None:
        """Wait until the device has finished all kernels."""
        self._kernels.join()

    def __enter__(self) -> "ToyDevice":
        self._worker.start()
        return self

    def __exit__(self, *error) -> None:
        self._kernels.put(None)
        self._worker.join()

    def _work(self) -> None:
        while (seconds := self._kernels.get()) is not None:
            began = time.perf_counter()
            time.sleep(seconds)
            self.busy_s += time.perf_counter() - began
            self._kernels.task_done()
