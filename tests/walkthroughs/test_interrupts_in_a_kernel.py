"""In a kernel, a call that was interrupted at any moment works when it is made again."""

import os
import queue
import random
import time

import pytest

SMILES = "(['CCO', 'CC(=O)Nc1ccc(OC)cc1'] * 10)"
CALLS = (
    f"gx.explain('solubility', {SMILES}).to_frame(per='input')",
    f"gx.evaluate('solubility', {SMILES}[:2], 'lrp', progress=False).plot('activation')",
    "gx.counterfactuals('solubility', 'CCOc1ccccc1', '>0', predictions=20, progress=False)",
    "gx.train_table(gx.clean_table(table, 'smiles', ['length']), out, split='random', epochs=1,"
    " teacher=False, resume=True, progress=False)",
)


@pytest.fixture(scope="module")
def run():
    """Return a function that runs a cell in a new kernel."""
    pytest.importorskip("ipykernel", reason='needs pip install ".[notebook]"')
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()

    def run(code, interrupted_after=None):
        """Run a cell, and return the error that ended it, if any."""
        begun, error = time.monotonic(), ""
        sent = client.execute(code)
        for _ in range(3000):
            if interrupted_after is not None and time.monotonic() - begun > interrupted_after:
                interrupted_after = manager.interrupt_kernel()  # None
            try:
                message = client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == sent:
                content = message["content"]
                if message["msg_type"] == "error":
                    error = f"{content['ename']}: {content['evalue']}"
                elif content.get("execution_state") == "idle":
                    return error
        raise AssertionError("the kernel does not answer")

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_function_that_was_interrupted_works_when_it_is_called_again(run, tmp_path):
    table, out = tmp_path / "table.csv", tmp_path / "run"
    rows = (f"{'C' * k}O,{k}\n{'C' * k}N,{k}.5\n" for k in range(1, 16))
    table.write_text("".join(["smiles,length\n", *rows]))
    start = f"import graphxai as gx; table, out = {str(table)!r}, {str(out)!r}"
    assert run(start) == ""
    generator = random.Random(0)
    for call in CALLS:
        stopped = run(call, interrupted_after=generator.uniform(0.1, 1.5))
        assert stopped == "" or stopped.startswith(("KeyboardInterrupt", "Interrupted")), stopped
        assert run(call) == ""
