"""Models and devices as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.parts import columns, facts_table, plain_row
from meshwright.units import GIB, GIGA, TERA, count, significant


def model_list(document: Mapping[str, Any]) -> RenderableType:
    """The `models list` table.

    Args:
        document: a `meshwright.models/1`.
    """
    rows = document["models"]
    table = columns(
        "model",
        "family",
        "parameters",
        "active",
        "layers",
        "hidden",
        "max length",
        "other names",
        left=("model", "family"),
        fold=("other names",),
    )
    broken = []
    for row in rows:
        if "error" in row:
            broken.append(Text(f"{row['name']}: {row['error']}"))
            continue
        active = count(row["active_parameters"]) if row["active_parameters"] != row["parameters"] else ""
        plain_row(
            table,
            row["name"],
            row["family"],
            count(row["parameters"]),
            active,
            str(row["layers"]),
            str(row["hidden"]),
            f"{row['max_seq_len']:,}",
            ", ".join(row["aliases"]),
        )
    return Group(table, Text(f"{len(rows)} models; any other: pass the path of its config.json"), *broken)


def model_card(card: Mapping[str, Any]) -> RenderableType:
    """The `models show` page.

    Args:
        card: a `meshwright.model/1`.
    """
    facts = facts_table()
    plain_row(facts, "model", f"{card['name']} ({card['family']})")
    plain_row(facts, "parameters", f"{card['parameters']:,} ({count(card['parameters'])})")
    if card["active_parameters"] != card["parameters"]:
        plain_row(facts, "active", f"{card['active_parameters']:,} ({count(card['active_parameters'])}) per token")
    if card["mtp_layers"]:
        plain_row(facts, "prediction", f"{card['mtp_layers']} more tokens, {card['mtp_parameters']:,} parameters apart")
    tied = ", used again as head" if card["tied_embeddings"] else f", head {card['head_parameters']:,}"
    plain_row(facts, "embedding", f"{card['embedding_parameters']:,}{tied}; vocabulary {card['vocab']:,}")
    plain_row(facts, "hidden", f"{card['hidden']:,}")
    for stream in card.get("streams", ()):
        of = f"{stream['layers']} layers of width {stream['hidden']:,}, {count(stream['parameters'])} parameters"
        long = f"; {stream['length']:,} tokens" if stream["length"] else "; as many tokens as its images have"
        plain_row(facts, stream["name"], f"{of}{long if stream.get('images') or stream['length'] else ''}")
    plain_row(facts, "max length", f"{card['max_seq_len']:,}")
    kinds = card["layer_kinds"]
    identity = " + ".join(str(kind["count"]) for kind in kinds)
    plain_row(facts, "layers", f"{identity} = {card['layers']}" if len(kinds) > 1 else str(card["layers"]))
    for kind in kinds:
        plain_row(facts, "", f"{kind['count']} x {_layer(kind)}")
    if card["aliases"]:
        plain_row(facts, "other names", ", ".join(card["aliases"]))
    plain_row(facts, "source", card["source"] or "not stated")
    for note in card["notes"]:
        plain_row(facts, "note", note)
    return facts


def model_added(added: Mapping[str, Any]) -> RenderableType:
    """Where a model was written.

    Args:
        added: a `meshwright.model-added/1`.
    """
    model = added["model"]
    return Text(f"{model['name']}: {count(model['parameters'])} parameters, written to {added['path']}")


def gpu_list(document: Mapping[str, Any]) -> RenderableType:
    """The `gpus list` table.

    Args:
        document: a `meshwright.gpus/1`.
    """
    rows = document["gpus"]
    table = columns(
        "device",
        "vendor",
        "year",
        "16-bit TFLOP/s",
        "memory GiB",
        "GB/s",
        "per node",
        "price/h",
        "other names",
        left=("device", "vendor"),
        fold=("other names",),
    )
    for row in rows:
        price = row["price_per_device_hour"]
        plain_row(
            table,
            row["name"],
            row["vendor"],
            str(row["year"] or ""),
            _peak_16(row["peak_flop_per_s"]),
            significant(row["memory_bytes"] / GIB),
            significant(row["memory_bandwidth_bytes_per_s"] / GIGA, 4),
            str(row["devices_per_node"] or ""),
            f"{price:.2f}" if price is not None else "",
            ", ".join(row["aliases"]),
        )
    closing = f"{len(rows)} devices; peaks are dense; `meshwright gpus show NAME` says where each number comes from"
    return Group(table, Text(closing))


def gpu_card(card: Mapping[str, Any]) -> RenderableType:
    """The `gpus show` page: each number with its basis and source.

    Args:
        card: a `meshwright.gpu/1`.
    """
    facts = facts_table()
    facts.add_column(style="dim", overflow="fold")
    sources = card["provenance"]

    def fact(name: str, text: str, key: str, known: Mapping[str, Any] = sources) -> None:
        found = known.get(key)
        dated = f", {found['date']}" if found and found["date"] else ""
        plain_row(facts, name, text, f"{found['basis']}: {found['source']}{dated}" if found else "")

    fact("device", f"{card['name']} ({card['vendor']}{', ' + str(card['year']) if card['year'] else ''})", "name")
    for number, (dtype, peak) in enumerate(card["peak_flop_per_s"].items()):
        rate = peak / TERA
        text = f"{dtype} {f'{rate:,.0f}' if rate >= 1000 else significant(rate, 4)} TFLOP/s, dense"
        fact("" if number else "peaks", text, "" if number else "peak_flop_per_s")
    fact("memory", f"{card['memory_bytes'] / GIB:.1f} GiB as frameworks see it", "memory_bytes")
    bandwidth = f"{card['memory_bandwidth_bytes_per_s'] / GIGA:,.0f} GB/s"
    fact("memory bandwidth", bandwidth, "memory_bandwidth_bytes_per_s")
    fact("to the host", f"{card['host_bandwidth_bytes_per_s'] / GIGA:,.0f} GB/s", "host_bandwidth_bytes_per_s")
    fact("units", str(card["units"]), "units")
    if card["power_w"] is not None:
        fact("power", f"{card['power_w']:,.0f} W", "power_w")
    if card["price_per_device_hour"] is not None:
        fact("price", f"{card['price_per_device_hour']:.2f} USD per device and hour", "price_per_hour")
    if (node := card["node"]) is not None:
        known = node["provenance"]
        fact("node", f"{node['devices_per_node']} devices", "devices_per_node", known)
        link = f"{node['scaleup_name']}: {significant(node['scaleup_bytes_per_s'] / GIGA, 4)} GB/s"
        fact("scale-up", f"{link} over {node['scaleup_domain']} devices", "scaleup_bytes_per_s", known)
        fabric = f"{node['fabric_name']}: {significant(node['fabric_bytes_per_s'] / GIGA, 4)} GB/s"
        fact("fabric", fabric, "fabric_bytes_per_s", known)
    efficiency = card["efficiency"]
    best = f"GEMM {efficiency['gemm_fraction']:.0%}, memory {efficiency['memory_fraction']:.0%} of peak at best"
    basis, source = efficiency["basis"], efficiency["source"]
    plain_row(facts, "kernels", best, source if source.startswith(basis) else f"{basis}: {source}")
    if card["aliases"]:
        plain_row(facts, "other names", ", ".join(card["aliases"]), "")
    if card["notes"]:
        plain_row(facts, "note", card["notes"], "")
    return Group(facts, Text("GB/s are per device and direction"))


def gpu_added(added: Mapping[str, Any]) -> RenderableType:
    """Where a device file went, and what the linter says of it.

    Args:
        added: a `meshwright.gpu-added/1`.
    """
    written = Text(f"{added['gpu']['name']}: written to {added['path']}")
    if not added["findings"]:
        return written
    table = columns("", "field", "what", "suggestion", left=("", "field"), fold=("what", "suggestion"))
    for finding in added["findings"]:
        plain_row(table, finding["level"], finding["field"], finding["message"], finding["suggestion"])
    return Group(written, Text(), table)


def _layer(kind: Mapping[str, Any]) -> str:
    parts = [_mixer(kind, kind["attention"]), _mlp(kind)]
    if "cross" in kind:
        parts.insert(1, _mixer(kind["cross"], "cross"))
    stream = f"{kind['stream']}: " if kind.get("stream") else ""
    return f"{stream}{'; '.join(part for part in parts if part)}; {count(kind['parameters'])} parameters"


def _mixer(kind: Mapping[str, Any], name: str) -> str:
    if name == "none":
        return ""
    title = f"{name} attention" if "kv_heads" in kind else name
    heads = f", {kind['heads']} heads" if kind.get("heads") else ""
    width = f" of {kind['head_dim']}" if heads and kind.get("head_dim") else ""
    own = kind.get("kv_heads", kind.get("heads"))
    keys = f", {own} for keys and values" if own != kind.get("heads") else ""
    window = f", window {kind['window']:,}" if kind.get("window") else ""
    return f"{title}{heads}{width}{keys}{window}"


def _mlp(kind: Mapping[str, Any]) -> str:
    if "ffn_hidden" not in kind:
        return "" if kind["mlp"] == "none" else str(kind["mlp"])
    gated = "gated " if kind.get("gated") else ""
    if kind["mlp"] != "moe":
        return f"{gated}MLP of {kind['ffn_hidden']:,}"
    shared = f", shared {kind['shared_ffn_hidden']:,}" if kind["shared_ffn_hidden"] else ""
    return f"{kind['top_k']:g} of {kind['experts']} {gated}experts of {kind['ffn_hidden']:,}{shared}"


def _peak_16(peaks: Mapping[str, float]) -> str:
    peak = peaks.get("bf16") or peaks.get("fp16")
    return significant(peak / TERA, 4) if peak else ""
