"""Reasons in words: one sentence for each kind of `planning.reason.Reason`, wherever it is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.planning.reason import Reason
from meshwright.units import (
    GIGA,
    JOULES_PER_KWH,
    energy,
    gib,
    of_capacity,
    percent,
    percents,
    seconds,
    signed_seconds,
    significant,
    slower,
    usd,
)

PARTS: dict[str, str] = {
    "compute": "compute",
    "recompute": "recomputed activations",
    "bubble": "pipeline bubble",
    "tp": "exposed tensor-parallel traffic",
    "cp": "exposed context-parallel traffic",
    "ep": "exposed expert all-to-all",
    "pp": "stage-to-stage transfers",
    "dp": "exposed gradient and weight traffic",
    "optimizer": "optimizer update",
    "offload": "exposed host transfers",
    "host": "kernel launch overhead",
}
"""Parts of a step."""
LEAST_PART = 0.005
"""Parts of the step below this share are printed together."""


def reason_text(reason: Reason) -> str:
    """The sentence of a reason."""
    return SENTENCES[reason.kind](reason.facts)


def parts_text(parts: Mapping[str, float]) -> str:
    """Seconds by part: `pipeline bubble +1.2 s, compute -38 ms`."""
    return ", ".join(f"{PARTS[name]} {signed_seconds(change)}" for name, change in parts.items())


def _time(facts: Mapping[str, Any]) -> str:
    parts, step_s = facts["parts"], sum(facts["parts"].values())
    large = {PARTS[name]: part for name, part in parts.items() if part >= LEAST_PART * step_s}
    shares = percents(large | {"other": step_s - sum(large.values())})
    return "time: " + ", ".join(f"{name} {share}" for name, share in shares.items())


def _memory(facts: Mapping[str, Any]) -> str:
    free = facts["free_bytes"]
    left = f"{gib(free)} free" if free >= 0 else f"{gib(-free)} over capacity"
    return f"memory: {facts['place']} peaks in {facts['moment']}; {left}"


def _host(facts: Mapping[str, Any]) -> str:
    needs, has = facts["host_bytes"], facts["memory_bytes"]
    parts = []
    if needs:
        size, unstated = significant(needs / GIGA), "how much it has is not stated (--host-ram)"
        if facts.get("shared"):
            parts.append(f"{size} GB of the memory that it shares with its device")
        else:
            parts.append(
                f"{size} GB of memory, {unstated}" if has is None else f"{size} of {significant(has / GIGA)} GB"
            )
    if facts["disk_bytes"]:
        size = facts["disk_size_bytes"]
        room = "" if size is None else f" of {significant(size / GIGA)} GB"
        parts.append(f"{significant(facts['disk_bytes'] / GIGA)} GB on disks{room}")
    verdict = "" if facts["fits"] else ": does not fit, a job may take 92% of the memory"
    return f"host: {'; '.join(parts)}{verdict}"


def _search(facts: Mapping[str, Any]) -> str:
    counts = f"{facts['space']:,} legal plans, {facts['priced']:,} priced, {facts['feasible']:,} fit"
    bound = facts["bound_s"]
    if facts["proof"] == "front":
        limit = f"; the quickest takes {seconds(bound)}" if bound is not None else ""
        return f"search: {counts}{limit}; plans more than 10% slower were not searched"
    if facts["proof"] == "part":
        return f"search: quickest of {counts} on the devices in use"
    if facts["optimal"]:
        rest = "; lower bounds exclude the rest" if facts["priced"] < facts["space"] else ""
        return f"search: optimal, {counts}{rest}"
    if bound is None:
        return f"search: {counts}"
    gap = "" if facts["gap"] is None else f" (gap {percent(facts['gap'])})"
    return f"search: {counts}; lower bound {seconds(bound)}{gap}"


def _run_by(facts: Mapping[str, Any]) -> str:
    """`runs under: Megatron-LM; --target accelerate or axolotl looks for one of its own`, or the quickest own plan."""
    able = facts["titles"] or "no framework known here"
    if facts["rank"] > 1:
        able = f"no framework known here, but plan {facts['rank']}: {able}"
    if best := facts.get("best"):
        which = "best trainer" if facts.get("searched") else "the quickest that one runs"
        asks = "" if facts.get("searched") else f", see --target {best['trainer']}"
        return f"runs under: {able}; {which}: {best['title']}, {seconds(best['step_time_s'])} ({best['plan']}){asks}"
    if facts.get("searched"):  # the table of trainers has the best plan of each
        return f"runs under: {able}"
    *names, last = facts["others"] or [""]
    others = f"{', '.join(names)} or {last}" if names else last
    return f"runs under: {able}" + (f"; --target {others} looks for one of its own" if others else "")


def _price(facts: Mapping[str, Any]) -> str:
    price, devices = facts["price_per_step"], facts["devices_price"]
    rented = " + ".join(f"{one['devices']:,} {one['name']} at {usd(one['per_hour'])}/h" for one in facts["groups"])
    own = f" (devices {usd(devices)})" if price > devices * (1 + 1e-9) else ""
    idle = "; idle devices are not rented" if facts["idle"] else ""
    return f"price of a step: {usd(price)}{own}: {rented} for {seconds(facts['step_time_s'])}{idle}"


def _energy(facts: Mapping[str, Any]) -> str:
    """`energy of a step: at most 0.687 kWh: 64 H100 at 700 W (limit) for 55.2 s; 0.261 kg CO2e at 0.38 kg/kWh`."""
    used = " + ".join(f"{one['devices']:,} {one['name']} at {_watts(one)}" for one in facts["groups"])
    most = "at most " if any(one["limit"] for one in facts["groups"]) else ""
    site = f", times {facts['pue']:g} for the site (PUE)" if facts["pue"] > 1 else ""
    idle = "; idle devices are taken as off" if facts["idle"] else ""
    carbon = facts["carbon_kg_per_kwh"]
    kwh = facts["energy_j"] / JOULES_PER_KWH
    gas = "" if carbon is None else f"; {most}{significant(kwh * carbon)} kg CO2e at {carbon:g} kg/kWh"
    return f"energy of a step: {most}{energy(kwh)}: {used} for {seconds(facts['step_time_s'])}{site}{idle}{gas}"


def _watts(group: Mapping[str, Any]) -> str:
    waits = f", {group['waiting_w']:g} W while waiting" if group["waiting_w"] != group["power_w"] else ""
    return f"{group['power_w']:g} W ({'limit' if group['limit'] else 'measured'}{waits})"


def _energy_difference(facts: Mapping[str, Any]) -> str:
    ratio = facts["ratio"]
    takes = (
        f"takes {percent(abs(ratio))} {'more' if ratio > 0 else 'less'} energy" if abs(ratio) >= 5e-4 else "same energy"
    )
    other, best = (energy(facts[name] / JOULES_PER_KWH) for name in ("other", "best"))
    parts = f" ({parts_text(facts['parts'])})" if facts["parts"] else ""
    return f"{takes}: {other} vs {best} per step{parts}"


def _link_price(facts: Mapping[str, Any]) -> str:
    kinds = (("activations", facts["activation_bytes"]), ("gradients", facts["gradient_bytes"]))
    sizes = " + ".join(f"{name} {significant(size / GIGA)} GB" for name, size in kinds if size)
    per_gb = f"{facts['per_gb']:g} USD/GB"
    return f"link {' - '.join(facts['between'])}: {sizes} per step, {usd(facts['price_per_step'])} at {per_gb}"


def _time_difference(facts: Mapping[str, Any]) -> str:
    parts = parts_text(facts["parts"])
    if facts["tied"]:
        return f"tie, {slower(facts['ratio'])}: {parts}" if parts else "tie: the same time"
    return f"{slower(facts['ratio'])}: {parts}" if parts else slower(facts["ratio"])


def _memory_difference(facts: Mapping[str, Any]) -> str:
    change, times = facts["change_bytes"], slower(facts["ratio"])
    if not change:
        return f"the same memory, {times}"
    return f"{gib(abs(change))} {'more' if change > 0 else 'less'} memory ({gib(facts['peak_bytes'])}), {times}"


def _cost_difference(facts: Mapping[str, Any]) -> str:
    ratio, digits = facts["ratio"], 4 if facts["unit"] != "USD" else 3
    costs = f"costs {percent(abs(ratio))} {'more' if ratio > 0 else 'less'}" if abs(ratio) >= 0.0005 else "same cost"
    other, best = (significant(facts[name], digits) for name in ("other", "best"))
    parts = f" ({parts_text(facts['parts'])})" if facts["parts"] else ""
    return f"{costs}: {other} vs {best} {facts['unit']} per step{parts}"


def _reserve(facts: Mapping[str, Any]) -> str:
    kept_out = "such plans were" if facts["offload"] else "such plans and host offload were"
    if facts["plan"] is None:
        kept_out = kept_out.replace("such plans", "plans with less than 8% free")
        return f"memory reserve: {kept_out} not searched; `check` prices them"
    return (
        f"memory reserve: {facts['plan']} is {percent(facts['gain'])} faster with less than 8% free "
        f"({of_capacity(facts['peak_bytes'], facts['capacity_bytes'])}); {kept_out} not searched"
    )


def _idle(facts: Mapping[str, Any]) -> str:
    used, devices = facts["used"], facts["devices"]
    rest = f"{devices - used:,} idle" + (" and not rented" if facts["rented"] else "")
    why = IDLE[facts["why"]](facts)
    each = facts.get("each")
    here = f" ({each['used']} of each {each['domain']} domain of {each['devices']})" if each else ""
    return f"{used:,} of {devices:,} {facts['of']} used{here}, {rest}" + (f": {why}" if why else "")


def _factor(facts: Mapping[str, Any]) -> str:
    axes = ", ".join(f"{axis} ({_AMOUNTS[what].format(amount)})" for axis, (what, amount) in facts["axes"].items())
    return (
        f"{facts['devices']} is divisible by {facts['factor']}, so some degree must be too, and none can: "
        f"{axes or 'their products'}"
    )


_AMOUNTS = {"batch": "batch {:,}", "heads": "{} heads", "layers": "{} layers", "tokens": "{:,} tokens"}
IDLE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "plan": lambda facts: "",
    "no faster plan": lambda facts: "no faster plan found that uses them",
    "strangers": lambda facts: (
        f"{facts['libraries'][0]} and {facts['libraries'][1]} share no communicator; to plan them together, give the "
        'link between them a transport in the cluster file, such as transport = "gloo"'
    ),
    "preempted": lambda facts: "plans that use them lose more time to preemptions than they save",
    "no better plan": lambda facts: "no plan found that uses them is better by what is asked for",
    "slower": lambda facts: f"the best plan of all {facts['devices']:,} ({facts['plan']}) is {slower(facts['ratio'])}",
    "too large": lambda facts: (
        f"none of the {facts['space']:,} legal plans of all {facts['devices']:,} fits the memory"
    ),
    "factor": _factor,
    "limits": lambda facts: f"the best plan of all {facts['devices']:,} exceeds {facts['limits']}",
    "cheaper": lambda facts: f"a step costs {percent(facts['saved'])} less",
    "less energy": lambda facts: f"a step takes {percent(facts['saved'])} less energy",
}
"""Why devices are idle, by the reason's `why`."""


def _trainer(facts: Mapping[str, Any]) -> str:
    software, own = facts.get("software"), facts.get("own", ())
    if own:
        others = (
            f"{', '.join(own)} run{'s' * (len(own) == 1)} on other software and stand{'s' * (len(own) == 1)} beside it"
        )
        said = f"the best of those that run on {software}, as stated; {others}"
    else:
        said = f"with the best plan of {facts['trainers']} trainers"
        if software:
            said += f", all priced with the kernels and memory of {software}, as stated, for which no files are written"
    return f"trainer: {facts['title']}, {said}; --target NAME asks another"


SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "identity": lambda facts: f"plan: {facts['text']}",
    "time": _time,
    "memory": _memory,
    "host": _host,
    "objective": lambda facts: f"objective {facts['name']}: {facts['rule']}",
    "search": _search,
    "trainer": _trainer,
    "run by": _run_by,
    "unequal pipelines": lambda facts: (
        "pipelines of unequal shape: composed in addition to the search of equal ones; no framework known here runs "
        "them, and `plan --target NAME` finds the best plan that one can"
    ),
    "unequal chunks": lambda facts: (
        "chunks of unequal numbers of layers: composed in addition to the search of equal ones"
    ),
    "recompute per layer": lambda facts: "recompute: chosen per layer after the search",
    "limits": lambda facts: f"limits: {facts['rule']}",
    "price": _price,
    "energy": _energy,
    "energy difference": _energy_difference,
    "link price": _link_price,
    "reserve": _reserve,
    "idle": _idle,
    "time difference": _time_difference,
    "memory difference": _memory_difference,
    "cost difference": _cost_difference,
}
"""Sentences by the kind of a reason."""
