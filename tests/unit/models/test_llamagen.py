"""LlamaGen's class by its laws: guidance as written, caches that change nothing, blocks of any widths."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.models.classes.hetero import hetero_values, lost_units
from stages.models.classes.modeling_llamagen import LlamaGenConfig, LlamaGenForImageGeneration

SIZES = {
    "vocab_size": 40, "num_classes": 5, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 17, "initializer_range": 0.4,
}  # fmt: skip
LABELS = torch.tensor([0, 3, 4])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LlamaGenForImageGeneration(LlamaGenConfig(**SIZES)).eval()


def sampled(model, seed=1, **options):
    torch.manual_seed(seed)
    return model.generate(class_labels=LABELS, **options)


@pytest.mark.parametrize(("scale", "guided"), [(2.5, None), (2.5, 3), (0.5, None), (1.0, None)])
def test_greedy_codes_are_the_largest_of_guided_logits(model, scale, guided):
    codes = model.generate(class_labels=LABELS, guidance_scale=scale, guided_codes=guided, do_sample=False)
    nobody = torch.full_like(LABELS, model.config.num_classes)
    with torch.no_grad():
        c, u = (
            model(torch.cat((model.prompt(labels), codes[:, :-1]), 1), use_cache=False).logits
            for labels in (LABELS, nobody)
        )
    scales = torch.full((model.config.codes, 1), scale)
    scales[guided or model.config.codes :] = 1.0
    torch.testing.assert_close(codes, (u + scales * (c - u)).argmax(-1))


def test_guidance_changes_samples_and_a_seed_repeats_them(model):
    assert torch.equal(sampled(model, guidance_scale=2.0), sampled(model, guidance_scale=2.0))
    assert not torch.equal(sampled(model, guidance_scale=2.0), sampled(model, guidance_scale=1.0))
    assert not torch.equal(sampled(model, guidance_scale=2.0), sampled(model, 2, guidance_scale=2.0))


@pytest.mark.parametrize("option", [{"use_cache": False}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("chosen", [{}, {"top_k": 5, "temperature": 0.7}, {"top_p": 0.8, "guided_codes": 4}])
def test_caches_change_nothing(model, option, chosen):
    assert torch.equal(
        sampled(model, guidance_scale=2.0, **chosen), sampled(model, guidance_scale=2.0, **chosen, **option)
    )


def test_top_k_and_top_p_leave_out_unlikely_codes(model):
    ones = sampled(model, guidance_scale=2.0, top_k=1)
    torch.testing.assert_close(ones, model.generate(class_labels=LABELS, guidance_scale=2.0, do_sample=False))
    torch.testing.assert_close(ones, sampled(model, guidance_scale=2.0, top_p=1e-6))


def test_generation_config_settles_what_the_call_leaves_open(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    again.generation_config.update(guidance_scale=2.0, top_k=5)
    assert torch.equal(sampled(again), sampled(model, guidance_scale=2.0, top_k=5))
    assert again.generation_config.guidance_scale == 2.0


def test_a_token_step_by_step_gives_the_logits_of_the_whole_sequence(model):
    ids = torch.cat((model.prompt(LABELS), sampled(model)), 1)
    cache, steps = None, []
    with torch.no_grad():
        for place in range(ids.shape[1]):
            answer = model(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            steps.append(answer.logits)
        whole = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5 * float(whole.abs().max()), rtol=0)


def test_blocks_have_the_widths_that_the_configuration_tells():
    values = hetero_values(LlamaGenConfig(**SIZES).to_dict(), [1, 2], [7, 48], 8, {"o_proj"})
    config = LlamaGenConfig.from_dict(values)
    model = LlamaGenForImageGeneration(config).eval()
    first = model.model.layers[0]
    assert [first.self_attn.q_proj.out_features, first.mlp.down_proj.in_features] == [16, 7]
    assert first.self_attn.o_proj.bias is not None
    assert first.mlp.down_proj.bias is None
    assert lost_units(config)
    assert not lost_units(LlamaGenConfig(**SIZES))
    assert torch.equal(sampled(model, guidance_scale=2.0), sampled(model, guidance_scale=2.0, use_cache=False))


def test_a_saved_folder_loads_elsewhere_by_its_own_code(model, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    expected = model.generate(class_labels=LABELS, do_sample=False).tolist()
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A\n"
        "model = A.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        f"assert model.generate(class_labels=torch.tensor({LABELS.tolist()}), do_sample=False).tolist() == {expected}\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'stages']"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "saved")],
        env={"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"max_position_embeddings": 16}, "1 + a square"), ({"tie_word_embeddings": True}, "tie_word_embeddings")],
)
def test_configurations_that_make_no_image_are_refused(changes, told):
    with pytest.raises(Exception, match=told.replace("+", r"\+")):
        LlamaGenConfig(**SIZES | changes)


def test_wrong_calls_are_refused(model):
    with pytest.raises(ValueError, match="expected 0 to 5, got 0 to 6"):
        model.generate(class_labels=torch.tensor([0, 6]))
    with pytest.raises(ValueError, match="got both"):
        model.generate(model.prompt(LABELS), class_labels=LABELS)
    with pytest.raises(ValueError, match="expected class_labels"):
        model.generate(model.prompt(LABELS), guided_codes=3)


def test_without_classes_generate_is_transformers_own(model):
    ids = model.generate(model.prompt(LABELS), max_new_tokens=4, do_sample=False)
    torch.testing.assert_close(ids[:, 1:], model.generate(class_labels=LABELS, do_sample=False)[:, :4])
