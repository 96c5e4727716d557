"""Labs 9 and 10 on 2 and on 8 ranks: the solution gets all points there, and wrong answers lose the same ones."""

from dataclasses import replace

import pytest
from submissions import LONGEST_SAMPLE_S, try_sample

from grading.samples.sample import samples

ANSWERS = {
    "lab9_experts": ("right", "right_one_function", "one_row_a_choice", "evaluates_with_fewer_experts"),
    "lab10_eight_bits": ("right", "right_send_recv", "rows_of_own_shard", "draws_in_fp16", "half_of_the_ranks_flip"),
}


@pytest.mark.night
@pytest.mark.timeout(LONGEST_SAMPLE_S)
@pytest.mark.parametrize("n", (2, 8))
@pytest.mark.parametrize("lab, name", [(lab, name) for lab, names in ANSWERS.items() for name in names])
def test_sample_gets_its_points_on_other_numbers_of_ranks(lab, name, n, answers, referees, monkeypatch):
    referee = referees(lab)
    monkeypatch.setattr(referee, "tier", replace(referee.tier, world_size=n))
    sample = next(s for s in samples(lab) if s.name == name)
    try_sample(sample, answers(sample), referee)
