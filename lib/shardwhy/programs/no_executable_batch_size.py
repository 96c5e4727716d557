"""Not even a batch of one sample fits."""

from accelerate.utils import find_executable_batch_size


@find_executable_batch_size(starting_batch_size=4)
def train(batch_size):
    print("trying batches of", batch_size)
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")  # which is what a GPU would say each time


train()
