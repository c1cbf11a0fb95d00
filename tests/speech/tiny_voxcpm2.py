"""A folder of VoxCPM2 with small random weights, which the real package loads: no speech, but sound.

The constants of time are those of the released model (16 kHz in, 48 kHz out, 160 ms of audio a patch); widths
and depths are shrunk, to 0.8 MB. A character of the alphabet below is one token.
"""

from __future__ import annotations

import json
import string
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from speech.engines.voxcpm2 import prepare_import
from speech.engines.voxcpm2_folder import quiet

#: When the voice stops: `always` after four patches, whatever the text; `never` by itself; `paced` after half
#: a patch, 80 ms, for each token of the text, less the audio that stands before it.
Stop = Literal["always", "never", "paced"]

HIDDEN = 32
HEAD = 8
PATCHES_PER_TOKEN = 0.5
#: The ids 101 to 104 mark where audio begins and ends: no token of a text may have them.
FIRST_FREE_ID = 105


def build(folder: Path, *, stop: Stop = "paced", dtype: str = "float32", max_length: int = 1024) -> Path:
    """Write the folder, and return it; the same every time."""
    prepare_import()
    with quiet():
        torch: Any = import_module("torch")
        package: Any = import_module("voxcpm.model.voxcpm2")
        safetensors: Any = import_module("safetensors.torch")
        folder.mkdir(parents=True, exist_ok=True)
        settings = config(dtype=dtype, max_length=max_length)
        (folder / "config.json").write_text(json.dumps(settings))
        write_tokenizer(folder)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            read = package.VoxCPMConfig.model_validate(settings)
            model = package.VoxCPM2Model(
                read,
                package.LlamaTokenizerFast.from_pretrained(str(folder)),
                package.AudioVAEV2(config=read.audio_vae_config),
                device="cpu",
            )
        with torch.no_grad():
            _teach_stopping(model, stop)
        weights, decoder = {}, {}
        for name, tensor in model.state_dict().items():
            if name.startswith("audio_vae."):
                decoder[name.removeprefix("audio_vae.")] = tensor.clone()
            else:
                weights[name] = tensor.to(getattr(torch, dtype)).contiguous().clone()
        safetensors.save_file(weights, str(folder / "model.safetensors"))
        torch.save({"state_dict": decoder}, folder / "audiovae.pth")
    return folder


def config(*, dtype: str, max_length: int) -> dict[str, Any]:
    """Return `config.json`."""
    block = {"hidden_dim": HIDDEN, "ffn_dim": 64, "num_heads": 4, "num_layers": 1, "kv_channels": HEAD}
    factor = [1.0] * (HEAD // 2)
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": HIDDEN,
            "intermediate_size": 64,
            "max_position_embeddings": max_length,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "vocab_size": 512,
            "use_mup": False,
            "scale_emb": 12,
            "dim_model_base": HIDDEN,
            "scale_depth": 1.4,
            "rope_theta": 10000.0,
            "kv_channels": HEAD,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": factor,
                "short_factor": factor,
                "original_max_position_embeddings": max_length,
            },
        },
        "patch_size": 4,
        "feat_dim": 16,
        "residual_lm_num_layers": 1,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": 16,
        "scalar_quantization_scale": 9,
        "encoder_config": block,
        "dit_config": block | {"cfm_config": {"inference_cfg_rate": 2.0}},
        "audio_vae_config": {
            "encoder_dim": 4,
            "encoder_rates": [2, 5, 8, 8],
            "latent_dim": 16,
            "decoder_dim": 64,
            "decoder_rates": [8, 6, 5, 2, 2, 2],
            "cond_dim": 8,
        },
        "max_length": max_length,
        "device": "cuda",
        "dtype": dtype,
    }


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer that knows single characters, two Chinese ones as a pair, and bytes for the rest."""
    tokenizers: Any = import_module("tokenizers")
    models: Any = import_module("tokenizers.models")
    pre_tokenizers: Any = import_module("tokenizers.pre_tokenizers")
    names = ["<unk>", "<s>", "</s>", "▁", *string.ascii_letters, *string.digits, *".,;:!?'\"()-"]
    names += [f"<reserved_{number}>" for number in range(len(names), FIRST_FREE_ID)]
    names += [f"<0x{byte:02X}>" for byte in range(256)]
    names += ["你好", "你", "好"]
    model = models.BPE(
        vocab={name: number for number, name in enumerate(names)},
        merges=[("你", "好")],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "LlamaTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": False,
        "add_eos_token": False,
        "legacy": False,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _teach_stopping(model: Any, stop: Stop) -> None:
    """Set the weights that decide when to stop: it does where the second output of `stop_head` is larger."""
    model.stop_proj.weight.zero_()
    model.stop_proj.bias.zero_()
    model.stop_head.weight.zero_()
    if stop != "paced":
        # silu(1) is positive.
        model.stop_proj.bias.fill_(1.0)
        model.stop_head.weight[1 if stop == "always" else 0].fill_(1.0)
        return
    # Three dimensions of the language model are kept free of everything else: 0 is set in text alone, 2 in
    # audio alone, and one head of the first layer, which looks at all positions alike, writes into 1 how much
    # of what it saw was text.
    text, share, audio = 0, 1, 2
    lm = model.base_lm
    for layer in lm.layers:
        layer.self_attn.o_proj.weight[:3] = 0
        layer.mlp.down_proj.weight[:3] = 0
    lm.embed_tokens.weight[:, :3] = 0
    lm.embed_tokens.weight[:, text] = 20.0
    model.enc_to_lm_proj.weight[:3] = 0
    model.enc_to_lm_proj.bias[:3] = 0
    model.enc_to_lm_proj.bias[audio] = 1.0
    seen = lm.layers[0].self_attn
    seen.q_proj.weight[:HEAD] = 0
    seen.v_proj.weight[0] = 0
    # Its input is normalised: of 20 beside 29 dimensions of about 1 comes 5.5.
    seen.v_proj.weight[0, text] = 1 / (20.0 / ((400 + 29) / HIDDEN) ** 0.5)
    seen.o_proj.weight[share, 0] = 1.0
    # The quantiser rounds to ninths: its first value becomes the sign of (enough - share).
    enough = 1 / (1 + PATCHES_PER_TOKEN)
    quantiser = model.fsq_layer
    quantiser.in_proj.weight[0] = 0
    quantiser.in_proj.bias[0] = 0
    quantiser.in_proj.weight[0, audio] = 1000 * enough
    quantiser.in_proj.weight[0, share] = -1000
    quantiser.out_proj.weight[share] = 0
    quantiser.out_proj.bias[share] = 0
    quantiser.out_proj.weight[share, 0] = 1.0
    model.stop_proj.weight[0, share] = 1.0
    model.stop_proj.weight[1, share] = -1.0
    # silu(x) - silu(-x) is x.
    model.stop_head.weight[1, 0] = 1.0
    model.stop_head.weight[1, 1] = -1.0
