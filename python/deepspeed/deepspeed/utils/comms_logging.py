"""How often, how large and how fast collectives were."""

import copy
import math

from deepspeed.utils.timer import trim_mean


def convert_size(size_bytes):
    if size_bytes == 0:
        return "0B"
    names = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
    power = int(math.floor(math.log(size_bytes, 1024)))
    return f"{round(size_bytes / 1024**power, 2)} {names[power]}"


def calc_bw_log(comm_op, size, duration, world_size=None):
    """Throughput and bus bandwidth in Gbit/s of one operation; duration in ms."""
    import torch.distributed as dist
    n = world_size or (dist.get_world_size() if dist.is_initialized() else 1)
    seconds = max(duration, 1e-9) / 1000
    if comm_op in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"):
        size *= n
    rate = size / seconds * 8 / 1e9
    if comm_op in ("all_reduce", "all_reduce_coalesced", "inference_all_reduce"):
        return 2 * rate, rate * 2 * (n - 1) / n
    if comm_op in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
                   "all_to_all_single"):
        return rate, rate * (n - 1) / n
    return rate, rate


class CommsLogger:

    def __init__(self):
        # {operation: {bytes: [count, [latencies ms], [throughputs], [bus bandwidths]]}}
        self.comms_dict = {}
        self.verbose, self.debug, self.prof_ops, self.prof_all, self.enabled = False, False, [], True, False

    def configure(self, comms_config):
        self.enabled = comms_config.comms_logger_enabled
        if self.enabled:
            settings = comms_config.comms_logger
            self.verbose, self.debug = settings.verbose, settings.debug
            self.prof_ops, self.prof_all = settings.prof_ops, settings.prof_all

    def start_profiling_comms(self):
        self.prof_all = True

    def stop_profiling_comms(self):
        self.prof_all = False

    def append_spans(self, spans, world_size):
        """What an engine communicated, with the times of the device; its bytes are those of whole buffers."""
        for span in spans:
            if not self.prof_all and span.name not in self.prof_ops:
                continue
            shared = span.name in ("all_gather", "reduce_scatter")  # here the size is one rank's part
            self.append(span.name, span.name, span.device_seconds * 1000, span.bytes // (world_size if shared else 1))

    def append(self, raw_name, record_name, latency, msg_size):
        throughput, bus = calc_bw_log(raw_name, msg_size, latency)
        record = self.comms_dict.setdefault(record_name, {}).setdefault(msg_size, [0, [], [], []])
        record[0] += 1
        for column, value in zip(record[1:], (latency, throughput, bus)):
            column.append(value)

    def has_comm_data(self):
        return bool(self.comms_dict)

    def reset_data(self):
        self.comms_dict.clear()

    def get_total_operations(self):
        return sum(record[0] for sizes in self.comms_dict.values() for record in sizes.values())

    def get_operation_names(self):
        return list(self.comms_dict)

    def get_raw_data(self):
        return copy.deepcopy(self.comms_dict)

    def get_operation_summary(self, operation_name):
        """{bytes: {count, total_latency_ms, ...}} of one operation; the records stay as they are."""
        summary = {}
        for size, (count, latencies, throughputs, buses) in self.comms_dict.get(operation_name, {}).items():
            summary[size] = {
                "count": count,
                "total_latency_ms": sum(latencies),
                "avg_latency_ms": trim_mean(latencies, 0.1),
                "tput_avg_gbps": trim_mean(throughputs, 0.1),
                "busbw_avg_gbps": trim_mean(buses, 0.1),
                "msg_size_bytes": size,
                "msg_size_str": convert_size(size),
            }
        return summary

    def log_all(self, print_log=True, show_straggler=False, return_dict=False):
        from deepspeed.utils.logging import logger
        summary = {name: self.get_operation_summary(name) for name in self.comms_dict}
        if print_log:
            for name, sizes in summary.items():
                for row in sizes.values():
                    logger.info(f"{name:<24} {row['msg_size_str']:>12} x{row['count']:<6} "
                                f"{row['avg_latency_ms']:.3f} ms  {row['tput_avg_gbps']:.2f} Gbps")
        return {"summary": summary}
