"""One vLLM engine on an event loop of its own: any thread may ask it, and all that is asked for runs as one batch."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ..config import PolicyConfig
from .base import EngineLostError, PolicyError
from .vllm_worker import OWNER

T = TypeVar("T")
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM pulls in and text models never use. A build for another torch breaks the import of transformers."""
MEND = f"nothing here needs it: run `pip uninstall -y {' '.join(UNUSED)}`"


SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads and may have used the GPU: no fork
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",  # to load; as long as a worker of the Ray pipeline may take
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # as many threads as OMP_NUM_THREADS says, where the system puts them
}
"""vLLM's environment, where the user has not set it."""


def import_vllm() -> Any:
    """The `vllm` package. Raises `PolicyError` where it is missing or does not import, with the mend."""
    # before the import, which reads them
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise PolicyError(f"vLLM does not import: {error}") from error
        raise PolicyError("backend vllm is not installed: see docs/vllm.md, or set backend: hf") from error
    except Exception as error:  # compiled extensions can raise anything
        raise PolicyError(f"vLLM does not import ({str(error).splitlines()[0]}); {mend(error)}") from error
    return vllm


def mend(error: BaseException) -> str:
    """What to do about a failed import of vLLM."""
    if any(name in str(error) for name in UNUSED):
        return f"it is built for another torch, and {MEND}"
    return "reinstall it as docs/vllm.md says"


def engine_args(config: PolicyConfig, tokens: int) -> Any:
    """vLLM's arguments for a policy whose sequences have at most `tokens` tokens."""
    import_vllm()
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    engine = config.engine
    options: dict[str, Any] = {}
    if current_platform.is_cpu():
        # compiling costs minutes and wins nothing at the sizes that a CPU can hold; blocks are multiples of 32 there
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
        options = {"enforce_eager": True, "kv_cache_memory_bytes": int(engine.cache_gib * 2**30), "block_size": 32}
    else:
        options = {"gpu_memory_utilization": engine.gpu_memory}
        backend = "ipc" if engine.transfer == "auto" else engine.transfer
        if backend != "file":
            options["weight_transfer_config"] = WeightTransferConfig(backend=backend)
        if backend == "ipc":
            # handles of GPU memory travel pickled, between processes of this program alone
            os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    return AsyncEngineArgs(
        model=config.path,
        revision=config.revision,
        dtype=config.dtype,
        tensor_parallel_size=engine.tensor_parallel,
        max_model_len=tokens,
        max_num_seqs=engine.episodes,
        max_num_batched_tokens=max(engine.batch_tokens, engine.episodes),
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,  # token ids in, token ids out
        generation_config="vllm",  # not the checkpoint's top-p, top-k and stop tokens
        logprobs_mode="raw_logprobs",  # of the model itself, at temperature 1
        worker_extension_cls="divopd.policies.vllm_worker.Receiver",
        disable_log_stats=True,
        **options,
    )


class Engine:
    """A running engine. All methods block, and any thread may call them at any time."""

    def __init__(self, config: PolicyConfig, tokens: int) -> None:
        args = engine_args(config, tokens)
        os.environ[OWNER] = str(os.getpid())
        from vllm.v1.engine.async_llm import AsyncLLM

        self.keep = config.engine.sync == "keep"
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._swapping = threading.Lock()
        self._torn: str | None = None  # why the weights are neither the old nor the new ones
        self._llm: Any = None

        async def start() -> Any:
            return AsyncLLM.from_engine_args(args)  # wants the loop that it will run on

        try:
            self._llm = self.call(start())
        except Exception as error:
            self.close()
            raise PolicyError(
                f"vLLM cannot start on {config.path}: {' '.join(str(error).split())}; its own lines above say more"
            ) from error

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop and wait for it. A dead engine is a `PolicyError`."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if (kind := type(error).__name__) in ("EngineDeadError", "EngineGenerateError"):
                lost = EngineLostError if kind == "EngineDeadError" else PolicyError
                raise lost(f"the vLLM engine failed ({error}); its own lines above say why") from error
            raise

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        """The finished outputs of requests that run at once, in their order."""
        outputs = [] if self._torn else self.call(self._generate(prompts, params))
        if self._torn:  # before, or while these waited
            raise PolicyError(self._torn)
        return outputs

    async def _generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        tasks = [asyncio.ensure_future(self._one(p, own)) for p, own in zip(prompts, params, strict=True)]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()  # vLLM aborts a request whose reader is gone
            raise

    async def _one(self, prompt: Sequence[int], params: Any) -> Any:
        request, done = {"prompt_token_ids": list(prompt)}, None
        async for output in self._llm.generate(request, params, request_id=f"r{next(self._numbers)}"):
            done = output
        reason = done.outputs[0].finish_reason if done else "no output"
        if done is None or reason not in ("stop", "length"):
            raise PolicyError(f"vLLM gave up a request of {len(prompt)} tokens ({reason})")
        return done

    def rpc(self, method: str, *args: Any) -> list[Any]:
        """Call a method on every worker."""
        return self.call(self._llm.collective_rpc(method, args=args))

    def swap(self, move: Callable[[], str]) -> None:
        """Change weights with no request half done unawares: pause, `move()`, label what follows as it says, resume.

        Requests under way end first, under the old weights (`engine.sync: wait`), or stand still and go on under the
        new (keep), which read their tokens again; each token is labelled with what drew it. New requests wait. The
        prefix cache is the old weights', so it is emptied.
        """
        with self._swapping:
            self._torn = None
            self.call(self._llm.pause_generation(mode="keep" if self.keep else "wait", clear_cache=True))
            try:
                label = move()
                if not self.call(self._llm.reset_prefix_cache()):  # the pause did; this makes sure
                    raise RuntimeError("its prefix cache still holds what the old weights computed")
                self.call(self._llm.update_weight_version(label))
            except Exception as error:
                why = " ".join(str(error).split())
                self._torn = f"new weights did not reach the vLLM engine ({why}): load them again"
                raise PolicyError(self._torn) from error
            finally:
                self.call(self._llm.resume_generation())

    # what vLLM's trainer side calls: divopd/policies/vllm_weights.py

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        self.call(self._llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": dict(init_info)}))

    def start_weight_update(self) -> None:
        self.call(self._llm.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self.call(self._llm.collective_rpc("update_weights", kwargs={"update_info": update_info}))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.call(self._llm.finish_weight_update(weight_version))

    def shutdown_weight_transfer_engine(self) -> None:
        self.call(self._llm.shutdown_weight_transfer_engine())

    def close(self) -> None:
        """End the engine's processes and its loop. Safe to call again."""
        if self._loop.is_closed():
            return
        if self._llm is not None:
            llm, self._llm = self._llm, None

            async def stop() -> None:
                llm.shutdown(timeout=5)

            asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
