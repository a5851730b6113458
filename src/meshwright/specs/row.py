"""A homogeneous plan as one row of degrees, and its one-line form `tp8.pp4.vpp2.dp16.z1.mbs1.gbs1024.rc-sel`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from typing import Any, Literal, get_args

from meshwright.errors import InputError, Problem
from meshwright.specs.dispatchers import ALLTOALL, DISPATCHERS, Dispatcher
from meshwright.specs.shardings import SHARDINGS, UNSHARDED
from meshwright.specs.strategy import (
    TENSOR_OVERLAPS,
    ContextParallel,
    DataParallel,
    ExpertOverlap,
    ExpertParallel,
    LayerStrategy,
    Offload,
    Recompute,
    Tensor,
    Tensor1D,
    TensorNamed,
    TensorOverlap,
)

OFFLOAD_LETTERS = {"w": "weights", "a": "activations", "o": "optimizer", "g": "gradients"}
"""Letters of `off-waog`, and the states that they move."""
HotExperts = Literal["kept", "balanced", "shadow1", "shadow2", "shadow4", "shadow8"]
"""What is done about experts with many tokens: nothing, experts placed by load, so many copied to every rank."""
HOT_EXPERTS: tuple[HotExperts, ...] = get_args(HotExperts)
_EXPERT_TOKENS: dict[str, tuple[str, str | int]] = {
    "epbal": ("hot_experts", "balanced"),
    "epshadow1": ("hot_experts", "shadow1"),
    "epshadow2": ("hot_experts", "shadow2"),
    "epshadow4": ("hot_experts", "shadow4"),
    "epshadow8": ("hot_experts", "shadow8"),
    "epdtd": ("drop_duplicates", True),
    "epstash": ("stash_collectives", True),
    "epfirst": ("prioritised", True),
    "epc2": ("ep_chunks", 2),
    "epc4": ("ep_chunks", 4),
    "epc8": ("ep_chunks", 8),
    "epov-shared": ("ep_overlap", "shared"),
    "epov": ("ep_overlap", "paired"),
    "epov-wgrad": ("ep_overlap", "paired-wgrad"),
}
RECOMPUTES = ("none", "sel", "full", "block", "uni")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One homogeneous plan: every stage has these degrees; layers are spread evenly by weight."""

    tp: int = 1
    tensor: str = "1d"
    """Tensor strategy, by its name in the catalogue."""
    sp: bool = True
    tp_overlap: TensorOverlap = "bulk"
    cp: tuple[tuple[str, int], ...] = ()
    """Levels (kind, degree), innermost first."""
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    dispatcher: str = ALLTOALL
    """How tokens and experts meet, by its name in `specs.dispatchers`."""
    ep_overlap: ExpertOverlap = "none"
    hot_experts: HotExperts = "kept"
    ep_chunks: int = 1
    """Pieces in which dispatch, experts and combine follow each other: 1, 2, 4 or 8."""
    drop_duplicates: bool = False
    stash_collectives: bool = False
    prioritised: bool = False
    """Exchanges go before gradients on the links."""
    dp: int = 1
    sharding: str = UNSHARDED
    """Kind of data sharding, by its name in `specs.shardings`."""
    shard_group: int = 0
    """Ranks of one shard group, of kinds with groups; 0 otherwise."""
    mbs: int = 1
    gbs: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    recompute_layers: int = 0
    """K of `block` (first K layers of each chunk) and `uni` (groups of K)."""
    recompute_modules: tuple[str, ...] = ("core_attn",)
    """What `sel` makes again."""
    offload: str = ""
    """Letters of what is offloaded: w, a, o, g; behind them `-nvme` and `-dpu`, as in `waog-nvme`."""
    dp_overlap: bool = True
    optimizer_tile: int = 0
    """Parameters that the optimizer updates at a time; 0 for all."""
    data_words: tuple[str, ...] = ()
    """What data ranks send each other in another way than usual, as `specs.data_words` says it: `gc-powersgd4`."""

    @property
    def cp_degree(self) -> int:
        """Context degree over all levels."""
        degree = 1
        for _, level in self.cp:
            degree *= level
        return degree

    @property
    def devices(self) -> int:
        """tp x cp x pp x dp."""
        return self.tp * self.cp_degree * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches per data-parallel rank and step."""
        return self.gbs // (self.dp * self.mbs)

    @property
    def layout(self) -> tuple[int, ...]:
        """The degrees that decide where ranks sit; plans of one layout differ in settings only."""
        return (self.tp, self.cp_degree, self.ep, self.etp, self.pp, self.dp)

    def identity(self) -> str:
        """The degrees multiplied out: `64 = tp8 x pp4 x dp2`."""
        parts = [("tp", self.tp), ("cp", self.cp_degree), ("pp", self.pp), ("dp", self.dp)]
        shown = [f"{name}{degree}" for name, degree in parts if degree > 1 or name == "dp"]
        return f"{self.devices} = {' x '.join(shown)}"

    def format(self) -> str:
        """The one-line form; defaults are left out, batch and data degree are always there."""
        return ".".join(self.tokens())

    def tokens(self, *, of_layers: bool = False) -> list[str]:
        """What the one-line form consists of.

        Args:
            of_layers: leave out what a pipeline has besides the strategy of its layers: stages, batch, schedule.
        """
        tokens = []
        if self.tp > 1:
            tokens.append(_format_tensor(self.tensor, self.tp))
            if not self.sp:
                tokens.append("nosp")
        if self.cp_degree > 1:
            tokens.append(_format_cp(self.cp))
        degrees = ("ep", "etp") if of_layers else ("pp", "vpp", "ep", "etp")
        tokens += [f"{name}{degree}" for name in degrees if (degree := getattr(self, name)) > 1]
        tokens += self.expert_words()
        tokens.append(f"dp{self.dp}")
        if self.sharding != UNSHARDED:
            tokens.append(self.sharding_word)
        tokens += self.data_words
        if not of_layers:
            tokens += [f"mbs{self.mbs}", f"gbs{self.gbs}"]
            if self.schedule != default_schedule(self.vpp):
                tokens.append(self.schedule)
        if self.recompute != "none":
            tokens.append(f"rc-{self.recompute_word}")
        if self.offload:
            tokens.append(f"off-{self.offload}")
        if self.tp > 1 and self.tp_overlap in TENSOR_OVERLAPS:
            tokens.append(TENSOR_OVERLAPS[self.tp_overlap])
        if not self.dp_overlap:
            tokens.append("nodpov")
        if self.optimizer_tile:
            tokens.append(f"tile{self.optimizer_tile}")
        return tokens

    def expert_words(self) -> list[str]:
        """Tokens about the way of tokens to experts on other ranks."""
        return [
            token
            for token, (field, stated) in expert_tokens().items()
            if (value := getattr(self, field)) == stated and isinstance(value, type(stated))
        ]

    def strategy(self, *, recomputed: bool | None = None) -> LayerStrategy:
        """The strategy of a layer; `recomputed` says on which side of a `block` boundary the layer is."""
        return _strategy_of(self, bool(recomputed))

    def _strategy(self, *, recomputed: bool) -> LayerStrategy:
        if self.recompute == "block":
            recompute = Recompute(kind="full") if recomputed else Recompute()
        elif self.recompute == "uni":
            recompute = Recompute(kind="grouped", group=self.recompute_layers)
        elif self.recompute == "sel":
            recompute = Recompute(kind="selective", modules=self.recompute_modules)
        else:
            recompute = Recompute(kind="full" if self.recompute == "full" else "none")
        tensor: Tensor = Tensor1D(degree=self.tp, sequence_parallel=self.sp, overlap=self.tp_overlap)
        if self.tensor != "1d" and self.tp > 1:
            tensor = TensorNamed(name=self.tensor, degree=self.tp)
        return LayerStrategy(
            tensor=tensor,
            context=tuple(ContextParallel.of(kind, degree) for kind, degree in self.cp),
            expert=ExpertParallel(
                ep=self.ep,
                etp=self.etp,
                dispatcher=self.dispatcher,
                overlap=self.ep_overlap,
                overlap_degree=self.ep_chunks,
                drop_duplicates=self.drop_duplicates,
                stash_collectives=self.stash_collectives,
                prioritised=self.prioritised,
                **about_hot_experts(self.hot_experts),
            ),
            data=self.data(),
            recompute=recompute,
            offload=offload_of(self.offload),
            optimizer_tile=self.optimizer_tile,
        )

    @property
    def recompute_word(self) -> str:
        """What is recomputed, in one word: `block4`, `sel-layernorm-moe_act`."""
        return "-".join((self.recompute, *self._listed_modules)) + str(self.recompute_layers or "")

    @property
    def _listed_modules(self) -> tuple[str, ...]:
        """Modules behind `rc-sel`; none for core attention alone."""
        return self.recompute_modules if self.recompute == "sel" and self.recompute_modules != ("core_attn",) else ()

    @property
    def sharding_word(self) -> str:
        """What data ranks share, in one word: `z1`, `hsdp8`."""
        return f"{self.sharding}{self.shard_group}" if SHARDINGS[self.sharding].grouped else self.sharding

    def data(self) -> DataParallel:
        """The data-parallel record of the row."""
        more: dict[str, Any] = {"overlap": self.dp_overlap}
        if self.data_words:
            from meshwright.specs.data_words import shared_fields  # few plans have any

            more |= shared_fields(self.data_words)
        return SHARDINGS[self.sharding].data(self.dp, self.cp_degree, self.shard_group, more)


@lru_cache(maxsize=512)
def _strategy_of(row: PlanRow, recomputed: bool) -> LayerStrategy:
    """A strategy is asked for by each rule of a plan, and by the plan itself."""
    return row._strategy(recomputed=recomputed)


def about_hot_experts(word: HotExperts) -> dict[str, Any]:
    """Fields of an expert strategy that the word states."""
    if word.startswith("shadow"):
        return {"shadowed": int(word.removeprefix("shadow"))}
    return {"placed_by_load": True} if word == "balanced" else {}


def hot_experts_of(expert: ExpertParallel) -> HotExperts:
    """The word of an expert strategy; of one that no word says whole, the nearest."""
    for word in HOT_EXPERTS:
        if word == f"shadow{expert.shadowed}":
            return word
    return "balanced" if expert.placed_by_load else "kept"


def recompute_fields(word: str) -> dict[str, Any]:
    """Fields of a row that a word says: `full`, `block`, `sel` for the attention core, `sel-layernorm-moe_act`.

    Args:
        word: the word of the recompute axis; how many layers a block has is not part of it.
    """
    kind, *modules = word.split("-")
    return {"recompute": kind, "recompute_modules": tuple(modules) or ("core_attn",)}


def recompute_of(word: str) -> Recompute:
    """What such a word does to a layer; to one behind the border of a block, nothing."""
    return PlanRow(**recompute_fields(word)).strategy(recomputed=False).recompute


def offload_of(token: str) -> Offload:
    """The record of letters and words: `og-nvme`."""
    letters, *words = token.split("-")
    return Offload(
        **{name: float(letter in letters) for letter, name in OFFLOAD_LETTERS.items()},
        tier="nvme" if "nvme" in words else "host",
        delayed_update="dpu" in words,
    )


def offload_token(offload: Offload) -> str:
    """Letters and words of a record; of one that moves a part of something, those of what it moves whole."""
    letters = "".join(letter for letter, name in OFFLOAD_LETTERS.items() if getattr(offload, name) == 1)
    words = [word for word, said in (("nvme", offload.tier == "nvme"), ("dpu", offload.delayed_update)) if said]
    return "-".join((letters, *words)) if letters else ""


def offload_problems(token: str, where: str = "") -> list[Problem]:
    """What is wrong with letters and words of an offload."""
    try:
        offload_of(token)
    except InputError as error:
        fix = "add o, or leave it out"
        return [replace(one, what=f"{where}{one.what}", fix=one.fix or fix, field="offload") for one in error.problems]
    return []


@cache
def offload_tokens() -> tuple[str, ...]:
    """Everything that a row may keep away, as `PlanRow.offload` says it: the least first, disks last."""
    found = []
    for words in ("", "-dpu", "-nvme", "-nvme-dpu"):
        for count in range(1, len(OFFLOAD_LETTERS) + 1):
            for letters in combinations(OFFLOAD_LETTERS, count):
                token = f"{''.join(letters)}{words}"
                if not offload_problems(token):
                    found.append(token)
    return tuple(found)


def expert_tokens() -> dict[str, tuple[str, str | int]]:
    """How tokens reach their experts, and what runs beside: tokens with the field and the value that they state."""
    return _tokens_with(tuple(DISPATCHERS.values()))


@lru_cache(maxsize=16)
def _tokens_with(dispatchers: tuple[Dispatcher, ...]) -> dict[str, tuple[str, str | int]]:
    return {kind.token: ("dispatcher", kind.name) for kind in dispatchers if kind.token} | _EXPERT_TOKENS


def default_schedule(vpp: int) -> str:
    """What a plan runs when no schedule is named."""
    return "interleaved" if vpp > 1 else "1f1b"


def _format_tensor(name: str, degree: int) -> str:
    if name == "1d":
        return f"tp{degree}"
    from meshwright.specs.tensor_grids import GRIDS  # few plans have one

    return GRIDS[name].token(degree) if name in GRIDS else f"tp{degree}-{name}"


def _format_cp(levels: tuple[tuple[str, int], ...]) -> str:
    degree = 1
    for _, level in levels:
        degree *= level
    if len(levels) == 1:
        kind = levels[0][0]
        return f"cp{degree}" if kind == "p2p" else f"cp{degree}-{kind}"
    return f"cp{degree}-" + "x".join(f"{kind}{level}" for kind, level in levels)
