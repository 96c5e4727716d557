# %% one_rank
def predict_one_rank(s):
    p = s.L * block_params(s) + root_params(s)
    return 12 * p, 16 * p + s.L * kept_bytes(s)


# %% ddp
def predict_ddp(s):
    p = s.L * block_params(s) + root_params(s)
    return 16 * p, 16 * p + s.L * kept_bytes(s)


# %% zero1
def predict_zero1(s):
    p = s.L * block_params(s) + root_params(s)
    return 8 * p + 8 * p / s.N, 8 * p + 8 * p / s.N + s.L * kept_bytes(s)


# %% fsdp
def predict_fsdp(s):
    p = s.L * block_params(s) + root_params(s)
    return 12 * p / s.N, 16 * p / s.N + s.L * kept_bytes(s)


# %% fsdp_bf16
def predict_fsdp_bf16(s):
    p = s.L * block_params(s) + root_params(s)
    return 12 * p / s.N, 16 * p / s.N + 2 * s.L * s.B * s.T * s.D
