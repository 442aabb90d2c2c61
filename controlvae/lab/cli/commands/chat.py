"""Command `chat`: conversation with a dialog model."""

from typing import Annotated

import typer

from controlvae.lab.cli import options as cli

_TEMPERATURE_HELP = "Temperature of the words. 0 takes the likeliest, as the paper does."


@cli.command("chat", cli.LOOK)
def _chat(
    run: cli.RunArgument,
    count: Annotated[int, cli.option("Responses to each line.", 1, max=100)] = 5,
    temperature: Annotated[float, cli.option(_TEMPERATURE_HELP, 0.0)] = 0.0,
    topic: Annotated[str, cli.option("Topic, one of those in the training data.")] = "",
    seed: Annotated[int, cli.option("Seed of the codes.", 0)] = 0,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Type a line and get several responses, each from a code of the prior. Ctrl-D ends.

    Lines may also come from a pipe.
    """
    from controlvae.lab.api.chat import chat, read_lines
    from controlvae.lab.cli.format import print_unknown_words
    from controlvae.lab.engines.device import pick_device
    from controlvae.lab.runs.loaded import load_run

    loaded = load_run(run, root=data_root, device=pick_device(device))
    replies = chat(
        loaded, read_lines(), count=count, temperature=temperature, topic=topic, seed=seed
    )
    for reply in replies:
        print_unknown_words(reply.unknown_words)
        for number, response in enumerate(reply.responses, start=1):
            typer.echo(f"{number:3d}  {response or '...'}")
