// What the metrics files tell, as series that charts draw.

const HELD = "held_bytes.";

// Elapsed time leaves out how long a run stood still, as between a kill and its continuation.
function elapsed(times) {
  const gaps = times.slice(1).map((time, i) => time - times[i]).filter((gap) => gap > 0).sort((a, b) => a - b);
  const longest = 60 + 20 * (gaps[Math.floor(gaps.length / 2)] || 0);
  let sum = 0;
  return times.map((time, i) => {
    const gap = i > 0 ? time - times[i - 1] : 0;
    return (sum += gap > 0 && gap < longest ? gap : 0);
  });
}

function xOf(run, axis) {
  const { step, samples, time } = run.columns;
  if (axis === "samples" && samples) return samples;
  if (axis === "time" && time) return elapsed(time);
  return step || [];
}

// Where a validation stands on the axis: at its step.
function xAt(run, steps, axis) {
  const own = run.columns.step || [], x = xOf(run, axis);
  return steps.map((step) => {
    const after = own.findIndex((each) => each >= step);
    return after < 0 ? x[x.length - 1] : x[after];
  });
}

function runningCount(run) {
  const skipped = new Set(run.skipped);
  let count = 0;
  let next = 0;
  const sorted = [...skipped].sort((a, b) => a - b);
  return (run.columns.step || []).map((step) => {
    while (next < sorted.length && sorted[next] <= step) ++next, ++count;
    return count;
  });
}

// title, how its numbers are told, and what of a run it shows: [name, values, style]
const CHARTS = [
  { id: "loss", title: "Loss", log: true, smooth: true,
    series: (run, axis) => [
      { name: "training", y: run.columns.loss },
      { name: "validation", y: run.validation.loss, x: xAt(run, run.validation.step, axis), dots: true }] },
  { id: "lr", title: "Learning rate", log: true, series: (run) => [{ name: "learning rate", y: run.columns.lr }] },
  { id: "grad_norm", title: "Gradient norm", log: true, smooth: true,
    series: (run) => [{ name: "norm", y: run.columns.grad_norm }] },
  { id: "speed", title: "Throughput", smooth: true, zero: true,
    series: (run) => [run.columns.tokens_per_s ? { name: "tokens/s", y: run.columns.tokens_per_s }
      : { name: "samples/s", y: run.columns.samples_per_s }] },
  { id: "flops", title: "Compute (FLOP/s)", smooth: true, zero: true,
    series: (run) => [{ name: "FLOP/s", y: run.columns.flops_per_s }] },
  { id: "memory", title: "Memory of rank 0, by kind", kind: "bytes", zero: true, log: true,
    series: (run) => [
      { name: "device, peak", y: run.columns["memory_bytes.device"] },
      { name: "host, resident", y: run.columns["memory_bytes.host"] },
      ...Object.keys(run.columns).filter((name) => name.startsWith(HELD)).map(
        (name) => ({ name: name.slice(HELD.length), y: run.columns[name].some((bytes) => bytes) ? run.columns[name] : null }))] },
  { id: "skipped", title: "Skipped steps", zero: true, whole: true,
    series: (run) => [{ name: "skipped so far", y: runningCount(run) }] },
  { id: "loss_scale", title: "Loss scale", log: true,
    series: (run) => (run.columns.loss_scale || []).some((scale) => scale !== 1)
      ? [{ name: "loss scale", y: run.columns.loss_scale }] : [] },
  { id: "times", title: "Time of a step's phases", kind: "milliseconds", smooth: true, zero: true,
    series: (run) => ["forward", "backward", "reduce", "step"].map(
      (phase) => ({ name: phase, y: run.columns[`time_ms.${phase}`] })) },
  { id: "gpu_use", title: "GPU in use", kind: "share", zero: true, smooth: true,
    series: (run) => [{ name: "busy", y: run.columns.gpu_use }] },
];

// Its mean over the past, of which every step counts less than the next one.
function smoothed(values, weight) {
  if (weight === 0) return values;
  let sum = 0, share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

// All series of a chart, those without a number left out.
function seriesOf(chart, runs, state) {
  const found = [];
  runs.forEach((run, index) => {
    if (state.hidden.has(`run ${run.name}`)) return;
    chart.series(run, state.axis).forEach((each, place) => {
      if (!each.y || !each.y.some((value) => value !== null)) return;
      found.push({
        ...each, x: each.x || xOf(run, state.axis), steps: each.dots ? run.validation.step : run.columns.step,
        run: run.name, color: `var(--c${(runs.length > 1 ? index : place) % 8})`,
        dash: runs.length > 1 ? ["", "6 3", "2 3", "8 3 2 3"][place % 4] : "",
        label: runs.length > 1 ? `${run.name}: ${each.name}` : each.name,
      });
    });
  });
  return found;
}
