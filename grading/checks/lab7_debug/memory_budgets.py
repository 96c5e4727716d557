"""The budgets of part 3, in MiB a rank, as the notebook shows them."""

BUDGETS = {
    "cpu": {"today_mib": 19.5, "tomorrow_mib": 16.0},
    "gpu1": {"today_mib": 20.0, "tomorrow_mib": 16.5},
    "gpu2": {"today_mib": 26.0, "tomorrow_mib": 22.5},
    "gpu4": {"today_mib": 20.0, "tomorrow_mib": 16.5},
    "gpu4-16gb": {"today_mib": 20.0, "tomorrow_mib": 16.5},
    "gpu8": {"today_mib": 18.0, "tomorrow_mib": 13.5},
    "gpu8-16gb": {"today_mib": 18.0, "tomorrow_mib": 13.5},
}
