"""Draws time and memory of attention over sequence and window.

    attention_benchmark --csv > attention.csv
    plot_attention.py attention.csv docs/results/attention.svg

Needs matplotlib.
"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "attention"  # the same picture for the same numbers
import matplotlib.pyplot as plt  # noqa: E402

DTYPES = ("F32", "BF16")
DIRECTIONS = ("forward", "backward")
COLORS = {0: "tab:blue", 256: "tab:orange", 1024: "tab:green"}


def series(rows, dtype, direction, window, column):
    """Sequences and the values of a column, in order of sequence."""
    picked = [
        (int(row["seq"]), float(row[column]))
        for row in rows
        if (row["dtype"], row["direction"], int(row["window"])) == (dtype, direction, window)
    ]
    return zip(*sorted(picked))


def draw(axes, rows, dtype, column, scale):
    for direction in DIRECTIONS:
        for window, color in COLORS.items():
            seqs, values = series(rows, dtype, direction, window, column)
            axes.plot(
                seqs,
                [value * scale for value in values],
                "-o" if direction == "forward" else "--s",
                color=color,
                markersize=4,
                label=f"{direction}, window {window or 'none'}",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    seqs = sorted({int(row["seq"]) for row in rows})
    axes.set_xticks(seqs, [str(seq) for seq in seqs])
    axes.set_xlabel("sequence")
    axes.grid(True, which="major", alpha=0.3)


def main():
    source, target = sys.argv[1:]
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, grid = plt.subplots(2, 3, figsize=(14, 8), sharex=True)
    for line, dtype in zip(grid, DTYPES):
        ceiling = next(float(row["ceiling_gflops"]) for row in rows if row["dtype"] == dtype)
        draw(line[0], rows, dtype, "milliseconds", 1)
        line[0].set_ylabel("ms")
        line[0].set_title(f"{dtype}: time")
        draw(line[1], rows, dtype, "gflops", 1)
        line[1].axhline(ceiling, color="black", linewidth=1)
        line[1].text(256, ceiling * 0.99, f"matrix products: {ceiling:.0f}", va="top")
        line[1].set_yscale("linear")
        line[1].set_ylim(0, ceiling * 1.05)
        line[1].set_ylabel("GFLOP/s")
        line[1].set_title(f"{dtype}: rate")
        draw(line[2], rows, dtype, "scratch_bytes", 2**-20)
        line[2].set_ylabel("MiB")
        line[2].set_title(f"{dtype}: scratch")
    grid[0][0].legend(fontsize=8)
    figure.suptitle("Causal attention, one sequence, 2 heads of 64, CPU")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None} if target.endswith(".svg") else None)


if __name__ == "__main__":
    main()
