"""How much memory model states need: the tables that users print before they choose a stage."""

from capstan import _C

_GIB = 2**30


def _bytes(stage, **facts):
    question = _C.StateQuestion()
    for name, value in facts.items():
        setattr(question, name, value)
    return _C.state_bytes(stage, question)


def estimate_zero2_model_states_mem_needs(total_params, num_gpus_per_node=1, num_nodes=1, cpu_offload=True,
                                          additional_buffer_factor=1.5):
    """(bytes of host memory per node, bytes of device memory per GPU)"""
    return _bytes(2, params=total_params, gpus_per_node=num_gpus_per_node, nodes=num_nodes,
                  offload_optimizer=cpu_offload, host_factor=additional_buffer_factor)[:2]


def estimate_zero3_model_states_mem_needs(total_params, largest_layer_params, num_gpus_per_node=1, num_nodes=1,
                                          cpu_offload=True, cpu_offload_params=True, zero_init=True,
                                          additional_buffer_factor=1.5):
    """(bytes of host memory per node, bytes of device memory per GPU, bytes of the largest layer)"""
    return _bytes(3, params=total_params, largest_layer=largest_layer_params, gpus_per_node=num_gpus_per_node,
                  nodes=num_nodes, offload_optimizer=cpu_offload, offload_params=cpu_offload_params,
                  sharded_init=zero_init, host_factor=additional_buffer_factor)


def model_to_params(model):
    """(all parameters, those of the largest layer)"""
    def count(module, recurse):
        return sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters(recurse=recurse))

    total = sum({p.data_ptr() if not hasattr(p, "ds_id") else id(p): getattr(p, "ds_numel", p.numel())
                 for p in model.parameters()}.values())
    largest = max([count(module, False) for module in model.modules()] or [0])
    return total, largest


def _print_header(total, num_gpus_per_node, num_nodes, largest=None):
    nodes = f"{num_nodes} node{'s' if num_nodes > 1 else ''}"
    gpus = f"{num_gpus_per_node} GPU{'s' if num_gpus_per_node > 1 else ''} per node"
    size = f"{int(total / 1e6)}M total params"
    if largest is not None:
        size += f", {int(largest / 1e6)}M largest layer params"
    print("Estimated memory needed for params, optim states and gradients for a:\n"
          f"HW: Setup with {nodes}, {gpus}.\nSW: Model with {size}.")
    print("  per CPU  |  per GPU |   Options")


def estimate_zero2_model_states_mem_needs_all_live(model, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5):
    estimate_zero2_model_states_mem_needs_all_cold(model_to_params(model)[0], num_gpus_per_node, num_nodes,
                                                   additional_buffer_factor)


def estimate_zero2_model_states_mem_needs_all_cold(total_params, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5):
    _print_header(total_params, num_gpus_per_node, num_nodes)
    for offload in (True, False):
        cpu, gpu = estimate_zero2_model_states_mem_needs(total_params, num_gpus_per_node, num_nodes, offload,
                                                         additional_buffer_factor)
        device = "cpu" if offload else "none"
        print(f" {cpu / _GIB:7.2f}GB | {gpu / _GIB:6.2f}GB | offload_optimizer={device:4}")


def estimate_zero3_model_states_mem_needs_all_live(model, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5):
    total, largest = model_to_params(model)
    estimate_zero3_model_states_mem_needs_all_cold(total, largest, num_gpus_per_node, num_nodes,
                                                   additional_buffer_factor)


def estimate_zero3_model_states_mem_needs_all_cold(total_params, largest_layer_params, num_gpus_per_node=1,
                                                   num_nodes=1, additional_buffer_factor=1.5):
    _print_header(total_params, num_gpus_per_node, num_nodes, largest_layer_params)
    for offload, offload_params in ((True, True), (True, False), (False, False)):
        for init in (True, False):
            cpu, gpu, _ = estimate_zero3_model_states_mem_needs(
                total_params, largest_layer_params, num_gpus_per_node, num_nodes, offload, offload_params, init,
                additional_buffer_factor)
            names = [f"offload_param={'cpu' if offload_params else 'none':4}",
                     f"offload_optimizer={'cpu' if offload else 'none':4}", f"zero_init={int(init)}"]
            print(f" {cpu / _GIB:7.2f}GB | {gpu / _GIB:6.2f}GB | {', '.join(names)}")
