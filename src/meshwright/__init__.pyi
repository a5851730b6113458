# Written by meshwright.cli.stub.
import os
from collections.abc import Iterable

from meshwright.app.calibrate import Calibrated
from meshwright.app.calibrate_from_log import FromLog
from meshwright.app.check import CheckReport
from meshwright.app.compare import Comparison
from meshwright.app.explanation import Explanation
from meshwright.app.export import Exported
from meshwright.app.plan_set import PlanSet as PlanSet
from meshwright.app.profile import Profile
from meshwright.app.run import Run
from meshwright.app.schedule import DrawnSchedules
from meshwright.app.size import SizeAnswer
from meshwright.app.trace import Trace
from meshwright.app.tune import TuneAnswer
from meshwright.app.validate import Validation
from meshwright.app.verify import Verified
from meshwright.compiler.listing import Listing as Listing
from meshwright.compiler.listing import difference as difference
from meshwright.compiler.marking import grad as grad
from meshwright.compiler.marking import layer_boundary as layer_boundary
from meshwright.compiler.marking import value_and_grad as value_and_grad
from meshwright.compiler.methods import Auto as Auto
from meshwright.compiler.methods import DataParallel as DataParallel
from meshwright.compiler.methods import FollowParallel as FollowParallel
from meshwright.compiler.methods import FromPlan as FromPlan
from meshwright.compiler.methods import LocalPipeline as LocalPipeline
from meshwright.compiler.methods import PipeshardParallel as PipeshardParallel
from meshwright.compiler.methods import ShardParallel as ShardParallel
from meshwright.compiler.methods import Zero2Parallel as Zero2Parallel
from meshwright.compiler.methods import Zero3Parallel as Zero3Parallel
from meshwright.compiler.stages.hosts import Hosts as Hosts
from meshwright.compiler.stages.islands import Islands as Islands
from meshwright.compiler.stages.picture import stages_svg as stages_svg
from meshwright.compiler.stages.plan import StagesPlan as StagesPlan
from meshwright.compiler.stages.search import plan_step as plan_step
from meshwright.planning.plan_source import PlanLike
from meshwright.runtime.checkpoint import restore_checkpoint as restore_checkpoint
from meshwright.runtime.checkpoint import save_checkpoint as save_checkpoint
from meshwright.runtime.parallelize import parallelize as parallelize
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.cluster import Island as Island
from meshwright.specs.device import DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice as ModelSlice
from meshwright.specs.seam import Parallelizer as Parallelizer
from meshwright.specs.seam import PartialPlan as PartialPlan
from meshwright.specs.workload import Workload

__version__: str

def plan(
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    *,
    gpus: str | None = ...,
    cluster: ClusterSpec | str | os.PathLike[str] | None = ...,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    tokens_per_step: int | float | str | None = ...,
    lengths: str | os.PathLike[str] | Iterable[tuple[int, float]] | None = ...,
    packing: str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    optimizer: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    attention_kernel: str | None = ...,
    loss_tiles: int | float | str | None = ...,
    mlp_tiles: int | float | str | None = ...,
    expert_imbalance: float | None = ...,
    tokens: int | float | str | None = ...,
    price: float | None = ...,
    calibration: Calibration | str | os.PathLike[str] | None = ...,
    top: int = ...,
    objective: str | None = ...,
    max_step_time: float | str | None = ...,
    max_price_per_step: int | float | str | None = ...,
    days: int | float | str | None = ...,
    max_price: int | float | str | None = ...,
    pin: str | Iterable[str] = ...,
    forbid: str | Iterable[str] = ...,
    schedule: str | Iterable[str] = ...,
    target: str | None = ...,
    pareto: bool = ...,
    tolerance: float | None = ...,
    parallelizer: str | Parallelizer | Iterable[str | Parallelizer] = ...,
    profiles: str | None = ...,
    replan_from: str | None = ...,
    lost: str | None = ...,
    added: str | None = ...,
) -> PlanSet: ...
def estimate(
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    plan: PlanLike | ExecutionPlan | PlanRow | None = ...,
    cluster: ClusterSpec | str | os.PathLike[str] | None = ...,
    workload: Workload | None = ...,
    *,
    gpus: str | None = ...,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    tokens_per_step: int | float | str | None = ...,
    lengths: str | os.PathLike[str] | Iterable[tuple[int, float]] | None = ...,
    packing: str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    optimizer: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    attention_kernel: str | None = ...,
    loss_tiles: int | float | str | None = ...,
    mlp_tiles: int | float | str | None = ...,
    expert_imbalance: float | None = ...,
    tokens: int | float | str | None = ...,
    price: float | None = ...,
    calibration: Calibration | str | os.PathLike[str] | None = ...,
    schedule: str | Iterable[str] = ...,
) -> PlanSet: ...
def check(
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    plan: PlanLike | ExecutionPlan | PlanRow | None = ...,
    cluster: ClusterSpec | str | os.PathLike[str] | None = ...,
    *,
    gpus: str | None = ...,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    tokens_per_step: int | float | str | None = ...,
    lengths: str | os.PathLike[str] | Iterable[tuple[int, float]] | None = ...,
    packing: str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    optimizer: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    attention_kernel: str | None = ...,
    loss_tiles: int | float | str | None = ...,
    mlp_tiles: int | float | str | None = ...,
    expert_imbalance: float | None = ...,
    tokens: int | float | str | None = ...,
    price: float | None = ...,
    calibration: Calibration | str | os.PathLike[str] | None = ...,
    source: str | os.PathLike[str] | None = ...,
    source_format: str | None = ...,
    oom_log: str | os.PathLike[str] | None = ...,
    search: bool = ...,
) -> CheckReport: ...
def explain(
    plan: PlanLike | None = ...,
) -> Explanation: ...
def compare(
    first: PlanLike | None = ...,
    second: PlanLike | None = ...,
) -> Comparison: ...
def size(
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    device: DeviceSpec | str | None = ...,
    *,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    tokens_per_step: int | float | str | None = ...,
    lengths: str | os.PathLike[str] | Iterable[tuple[int, float]] | None = ...,
    packing: str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    optimizer: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    attention_kernel: str | None = ...,
    loss_tiles: int | float | str | None = ...,
    mlp_tiles: int | float | str | None = ...,
    expert_imbalance: float | None = ...,
    tokens: int | float | str | None = ...,
    price: float | None = ...,
    calibration: Calibration | str | os.PathLike[str] | None = ...,
    days: float | None = ...,
    step_time: float | None = ...,
    max_price: float | None = ...,
    pin: str | Iterable[str] = ...,
    forbid: str | Iterable[str] = ...,
) -> SizeAnswer: ...
def trace(
    plan: PlanLike | PlanRow | None = ...,
    output: str | os.PathLike[str] | None = ...,
    *,
    svg: str | os.PathLike[str] | None = ...,
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    gpus: str | None = ...,
    cluster: ClusterSpec | str | os.PathLike[str] | None = ...,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    tokens_per_step: int | float | str | None = ...,
    lengths: str | os.PathLike[str] | Iterable[tuple[int, float]] | None = ...,
    packing: str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    optimizer: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    attention_kernel: str | None = ...,
    loss_tiles: int | float | str | None = ...,
    mlp_tiles: int | float | str | None = ...,
    expert_imbalance: float | None = ...,
) -> Trace: ...
def tune(
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    *,
    gpus: str | None = ...,
    cluster: ClusterSpec | str | os.PathLike[str] | None = ...,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    tokens_per_step: int | float | str | None = ...,
    lengths: str | os.PathLike[str] | Iterable[tuple[int, float]] | None = ...,
    packing: str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    optimizer: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    attention_kernel: str | None = ...,
    loss_tiles: int | float | str | None = ...,
    mlp_tiles: int | float | str | None = ...,
    expert_imbalance: float | None = ...,
    pin: str | Iterable[str] = ...,
    forbid: str | Iterable[str] = ...,
    schedule: str | Iterable[str] = ...,
    tuners: str | Iterable[str] = ...,
    trials: int = ...,
    storage: str | None = ...,
    resume: bool = ...,
    compare: bool = ...,
    seed: int = ...,
    repeats: int = ...,
    workers: int = ...,
    optimum: bool = ...,
) -> TuneAnswer: ...
def export(
    plan: PlanLike | None = ...,
    target: str | None = ...,
    directory: str | None = ...,
    *,
    force: bool = ...,
) -> Exported: ...
def schedule(
    name: str | Iterable[str] = ...,
    p: int | None = ...,
    m: int | None = ...,
    v: int | None = ...,
    *,
    tf: float = ...,
    ti: float = ...,
    tw: float = ...,
    tr: float = ...,
    tc: float = ...,
    warmup: str | None = ...,
    group: int | None = ...,
    raw: bool = ...,
    most_live: int | None = ...,
    segments: int | None = ...,
    reverse: bool = ...,
    pairs: int | None = ...,
    waves: int | None = ...,
    backward_ticks: int | None = ...,
    extra: int | None = ...,
    pipelines: int | None = ...,
    inject: int | None = ...,
    most: int | None = ...,
    times: str | None = ...,
    room: float | None = ...,
    allow: str | Iterable[str] = ...,
    split: bool = ...,
    svg: str | os.PathLike[str] | None = ...,
    csv: str | os.PathLike[str] | None = ...,
    source: str | None = ...,
) -> DrawnSchedules: ...
def validate(
    measured: str | os.PathLike[str] | None = ...,
    output: str | os.PathLike[str] | None = ...,
    *,
    fail_above: float | None = ...,
) -> Validation: ...
def calibrate(
    measured: str | Iterable[str] = ...,
    output: str | os.PathLike[str] | None = ...,
    *,
    from_log: str | os.PathLike[str] | None = ...,
    plan: PlanLike | ExecutionPlan | PlanRow | None = ...,
    framework: str | None = ...,
    model: ModelSpec | str | os.PathLike[str] | None = ...,
    gpus: str | None = ...,
    cluster: ClusterSpec | str | os.PathLike[str] | None = ...,
    host_ram: float | str | None = ...,
    nvme: str | None = ...,
    pcie: float | str | None = ...,
    seq_len: int | float | str | None = ...,
    images: int | None = ...,
    image_size: str | None = ...,
    encoder_seq_len: int | float | str | None = ...,
    global_batch: int | float | str | None = ...,
    dtype: str | None = ...,
    weight_dtype: str | None = ...,
    grad_dtype: str | None = ...,
    reduce_dtype: str | None = ...,
    gather_dtype: str | None = ...,
    moment_dtype: str | None = ...,
    main_copy: str | None = ...,
    dispatch_dtype: str | None = ...,
    lora: Lora | str | None = ...,
    freeze: str | Iterable[str] = ...,
    calibration: Calibration | str | os.PathLike[str] | None = ...,
) -> Calibrated | FromLog: ...
def profile(
    output: str | os.PathLike[str] | None = ...,
    *,
    name: str | None = ...,
    seconds: float = ...,
) -> Profile: ...
def run(
    model: str | None = ...,
    plan: str | None = ...,
    *,
    backend: str = ...,
    ray: str | None = ...,
    hosts_per_mesh: int = ...,
    devices: int | None = ...,
    layers: int | None = ...,
    hidden: int | None = ...,
    vocab: int | None = ...,
    seq_len: int | None = ...,
    global_batch: int | None = ...,
    dtype: str = ...,
    seed: int = ...,
    timeout_s: float = ...,
    steps: int = ...,
    trace: str | None = ...,
    checkpoint: str | None = ...,
    every: int = ...,
    elastic: bool = ...,
) -> Run: ...
def verify(
    model: str | None = ...,
    plan: str | None = ...,
    *,
    backend: str = ...,
    ray: str | None = ...,
    hosts_per_mesh: int = ...,
    devices: int | None = ...,
    layers: int | None = ...,
    hidden: int | None = ...,
    vocab: int | None = ...,
    seq_len: int | None = ...,
    global_batch: int | None = ...,
    dtype: str = ...,
    seed: int = ...,
    timeout_s: float = ...,
    steps: int = ...,
    tolerance: float | None = ...,
) -> Verified: ...
