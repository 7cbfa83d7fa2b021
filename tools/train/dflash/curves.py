"""Loss and acceptance curves as PNG; silently skipped where matplotlib is not installed."""


def figure(panels, path):
    """panels: (title, y label, {name: (xs, ys)})"""
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    fig, axes = plt.subplots(1, len(panels), figsize=(6 * len(panels), 4))
    for ax, (title, label, lines) in zip([axes] if len(panels) == 1 else axes, panels):
        for name, (xs, ys) in lines.items():
            ax.plot(xs, ys, label=name, linewidth=1.2)
        ax.set(title=title, xlabel="step", ylabel=label)
        ax.grid(alpha=0.3)
        if lines:
            ax.legend()
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    plt.close(fig)


def drafter(history, path):
    loss = {k: ([h["step"] for h in history if k in h], [h[k] for h in history if k in h]) for k in ("loss", "selector")}
    tps = [h for h in history if "tokens_per_step" in h]
    figure([("loss", "nats", {k: v for k, v in loss.items() if v[0]}),
            ("held-out rows", "tokens per step", {k: ([h["step"] for h in tps], [h["tokens_per_step"][k] for h in tps]) for k in ("argmax", "selector", "oracle")})], path)


def target(log, path):
    h = log["history"]
    figure([("target", "nats per token", {"training loss": ([x[0] for x in h], [x[2] for x in h])})], path)
