"""Runs a plan in this process and writes what came out: python -m tests.harness.worker PLAN.json OUT.npz

A process of its own per plan because GGML enumerates a backend registry once per process. The plan file holds the plan
and, beside it, `llama_bin`, `plugin` (path or null) and `device` (name or null for the CPU alone). Keys of OUT.npz:
<scenario>/<step>/logits, and when routing is observed <scenario>/<step>/<tensor name>/<occurrence>.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from tests.harness import plan as plans
from tests.harness.ggml import BufferTypeOverride, Ggml, Tensor
from tests.harness.sessions import Sessions

ROUTING_PREFIX = ("ffn_moe_topk-", "ffn_moe_weights")
HIDDEN_PREFIX = ("l_out-",)
BLOCK_PREFIX = ("ffn_moe_out-", "ffn_out-")  # some architectures rename the last node

DEBUG_LEVEL = 1  # GGML_LOG_LEVEL_DEBUG

Arrays = dict[str, npt.NDArray[Any]]


class WorkerError(RuntimeError):
    """Something the plan asks for did not work; the message says what."""


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _user: ctypes.c_void_p) -> None:
    if level == DEBUG_LEVEL:
        return
    sys.stderr.buffer.write(text)
    sys.stderr.buffer.flush()


class Session:
    """One loaded model and the contexts of the current scenario."""

    def __init__(self, ggml: Ggml, plan: plans.Plan, device: str | None, sessions: Sessions | None) -> None:
        self._ggml = ggml
        self._sessions = sessions
        self._context_ids: dict[int, int] = {}
        self._plan = plan
        self._keep: list[object] = []
        self._contexts: dict[int, Any] = {}
        self._saved: dict[int, bytes] = {}
        self._observed: list[tuple[str, npt.NDArray[Any]]] = []
        self._wanted: tuple[str, ...] = ()
        self._model = self._load(device)

    def run(self, scenario: plans.Scenario) -> Arrays:
        """Run all steps of a scenario; contexts are made on first use and freed at the end."""
        results: Arrays = {}
        try:
            for index, step in enumerate(scenario.steps):
                context = self._context(scenario, step.context)
                self._observed.clear()
                if step.action.endswith("-session"):
                    self._session_step(step)
                    continue
                logits = self._perform(step, context)
                key = f"{scenario.name}/{index}"
                if logits is not None:
                    results[f"{key}/logits"] = logits
                for name, occurrence, values in _numbered(self._observed):
                    results[f"{key}/{name}/{occurrence}"] = values
        finally:
            for context in self._contexts.values():
                llama_cpp.llama_free(context)
            self._contexts.clear()
        return results

    def close(self) -> None:
        """Free the model."""
        llama_cpp.llama_model_free(self._model)

    def _load(self, device: str | None) -> Any:
        options = self._plan.model
        params = llama_cpp.llama_model_default_params()
        addresses: list[int | None] = []
        if device is not None:
            address = self._ggml.device(device)
            if address is None:
                raise WorkerError(f"no device '{device}', there are {', '.join(self._ggml.device_names())}")
            addresses.append(address)
        devices = (ctypes.c_void_p * (len(addresses) + 1))(*addresses, None)
        overrides = (BufferTypeOverride * (len(options.overrides) + 1))()
        for slot, (pattern, buffer_type) in zip(overrides, options.overrides, strict=False):
            slot.pattern = pattern.encode()
            slot.buffer_type = self._ggml.buffer_type(buffer_type)
        self._keep += [devices, overrides]
        params.devices = ctypes.addressof(devices)
        params.tensor_buft_overrides = ctypes.addressof(overrides)
        params.n_gpu_layers = options.n_gpu_layers
        params.use_extra_bufts = options.use_extra_bufts
        params.load_mode = options.load_mode
        params.load_mtp = options.load_mtp
        params.split_mode = options.split_mode
        model = llama_cpp.llama_model_load_from_file(options.path.encode(), params)
        if not model:
            raise WorkerError(f"llama.cpp did not load {options.path}")
        return model

    def _context(self, scenario: plans.Scenario, index: int) -> Any:
        if index not in self._contexts:
            params = llama_cpp.llama_context_default_params()
            for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "op_offload"):
                setattr(params, name, getattr(scenario, name))
            params.flash_attn_type = scenario.flash_attn
            params.ctx_type = (
                llama_cpp.LLAMA_CONTEXT_TYPE_MTP if scenario.is_mtp else llama_cpp.LLAMA_CONTEXT_TYPE_DEFAULT
            )
            params.n_threads = params.n_threads_batch = self._plan.n_threads
            os.environ.update(scenario.settings)
            self._wanted = (
                ROUTING_PREFIX * scenario.observe_routing
                + HIDDEN_PREFIX * scenario.observe_hidden
                + BLOCK_PREFIX * scenario.observe_blocks
            )
            if self._wanted:
                callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
                self._keep.append(callback)
                params.cb_eval = callback
            known = self._sessions.context_ids() if self._sessions else set()
            context = llama_cpp.llama_init_from_model(self._model, params)
            if self._sessions:
                self._context_ids[index] = max(self._sessions.context_ids() - known, default=-1)
            if not context:
                raise WorkerError(f"llama.cpp made no context for scenario {scenario.name}")
            self._contexts[index] = context
        return self._contexts[index]

    def _on_node(self, address: int, ask: bool, _user: ctypes.c_void_p) -> bool:
        name = Tensor.from_address(address).name.decode()
        wanted = name.startswith(self._wanted)
        if wanted and not ask:
            self._observed.append((name, self._ggml.read(address)))
        return wanted or not ask

    def _perform(self, step: plans.Step, context: Any) -> npt.NDArray[np.float32] | None:
        if step.action == "decode":
            return self._decode(step, context)
        if step.action == "text":
            return self._decode_text(step, context)
        if step.action in ("remove", "shift", "copy"):
            self._change_memory(step, llama_cpp.llama_get_memory(context))
        elif step.action == "save":
            self._save(step.context, context)
        elif step.action == "load":
            self._restore(step, context)
        elif step.action == "lora":
            self._set_adapter(step, context)
        elif step.action == "warmup":
            llama_cpp.llama_set_warmup(context, step.scale != 0)
        else:
            raise WorkerError(f"unknown step '{step.action}'")
        return None

    def _change_memory(self, step: plans.Step, memory: Any) -> None:
        if step.action == "shift":
            llama_cpp.llama_memory_seq_add(memory, step.sequence, step.start, step.end, step.delta)
        elif step.action == "copy":
            llama_cpp.llama_memory_seq_cp(memory, step.sequence, step.target, -1, -1)
        elif not llama_cpp.llama_memory_seq_rm(memory, step.sequence, step.start, step.end):
            raise WorkerError("llama_memory_seq_rm refused")

    def _decode_text(self, step: plans.Step, context: Any) -> npt.NDArray[np.float32]:
        tokens = self._tokenize(Path(step.path).read_bytes())[: step.end]
        steps = [plans.decode([token], start=position) for position, token in enumerate(tokens)]
        return np.concatenate([self._decode(one, context) for one in steps])

    def _session_step(self, step: plans.Step) -> None:
        if self._sessions is None:
            raise WorkerError(f"{step.action} needs the plugin")
        message = self._sessions.perform(step, self._context_ids[step.context])
        as_expected = message is None if not step.expected else message is not None and step.expected in message
        if not as_expected:
            raise WorkerError(f"{step.action} said: {message}")

    def _decode(self, step: plans.Step, context: Any) -> npt.NDArray[np.float32]:
        n_token = len(step.tokens)
        batch = llama_cpp.llama_batch_init(n_token, 0, 1)
        batch.n_tokens = n_token
        for index in range(n_token):
            batch.token[index] = step.tokens[index]
            batch.pos[index] = step.positions[index]
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = step.sequences[index]
            batch.logits[index] = step.outputs[index]
        hidden = self._hidden_states(step)
        if hidden is not None:
            batch.embd = hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        status = llama_cpp.llama_decode(context, batch)
        batch.embd = None  # numpy's memory, not llama.cpp's to free
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise WorkerError(f"llama_decode of {n_token} tokens returned {status}")
        n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        shape = (sum(step.outputs), n_vocab)
        logits: npt.NDArray[np.float32] = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=shape)
        return logits.copy()

    def _tokenize(self, text: bytes) -> list[int]:
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        tokens = (llama_cpp.llama_token * (len(text) + 1))()
        n_token = llama_cpp.llama_tokenize(vocab, text, len(text), tokens, len(tokens), True, False)
        if n_token < 0:
            raise WorkerError("llama_tokenize refused")
        return list(tokens[:n_token])

    def _hidden_states(self, step: plans.Step) -> npt.NDArray[np.float32] | None:
        if not step.hidden_seed:
            return None
        shape = (len(step.tokens), llama_cpp.llama_model_n_embd(self._model))
        return np.random.default_rng(step.hidden_seed).standard_normal(shape, dtype=np.float32)

    def _save(self, index: int, context: Any) -> None:
        length = llama_cpp.llama_state_get_size(context)
        buffer = (ctypes.c_uint8 * length)()
        written = llama_cpp.llama_state_get_data(context, buffer, length)
        if written != length:
            raise WorkerError(f"llama_state_get_data wrote {written} of {length} bytes")
        self._saved[index] = bytes(buffer)

    def _restore(self, step: plans.Step, context: Any) -> None:
        data = self._saved[step.target]
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        if llama_cpp.llama_state_set_data(context, buffer, len(data)) != len(data):
            raise WorkerError("llama_state_set_data did not read the whole state")

    def _set_adapter(self, step: plans.Step, context: Any) -> None:
        adapter = llama_cpp.llama_adapter_lora_init(self._model, step.path.encode())
        if not adapter:
            raise WorkerError(f"llama.cpp did not load the adapter {step.path}")
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
        scales = (ctypes.c_float * 1)(step.scale)
        if llama_cpp.llama_set_adapters_lora(context, adapters, 1, scales) != 0:
            raise WorkerError("llama_set_adapters_lora refused")


def _numbered(observed: list[tuple[str, npt.NDArray[Any]]]) -> list[tuple[str, int, npt.NDArray[Any]]]:
    """Number the occurrences of each name: a name comes back per ubatch and per expert family."""
    seen: dict[str, int] = {}
    numbered = []
    for name, values in observed:
        occurrence = seen.get(name, 0)
        seen[name] = occurrence + 1
        numbered.append((name, occurrence, values))
    return numbered


def main(arguments: list[str]) -> int:
    """Run the plan file `arguments[0]` and write `arguments[1]`."""
    order = json.loads(Path(arguments[0]).read_text())
    llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))
    ggml = Ggml(Path(order["llama_bin"]))
    try:
        ggml.load(order["plugin"])
        llama_cpp.llama_backend_init()
        plan = plans.from_json(order["plan"])
        sessions = Sessions(order["plugin"]) if order["plugin"] else None
        session = Session(ggml, plan, order["device"], sessions)
        results: Arrays = {}
        for scenario in plan.scenarios:
            results |= session.run(scenario)
        session.close()
    except (WorkerError, ValueError) as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    np.savez(arguments[1], **results)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
