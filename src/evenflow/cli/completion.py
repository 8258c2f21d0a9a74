"""`evenflow completion`: the script with which a shell completes our commands."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(evenflow completion bash)"       in ~/.bashrc
    zsh:   eval "$(evenflow completion zsh)"        in ~/.zshrc
    fish:  evenflow completion fish | source        in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(ctx.find_root().command, {}, "evenflow", "_EVENFLOW_COMPLETE").source())
