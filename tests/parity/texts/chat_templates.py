"""Small chat templates, one for each feature that templates of public models use.

Written for these tests, after Qwen3's, Llama 3's, Gemma 3's, SmolLM's and Phi-4's ways.
"""

TURNS = [
    {"role": "system", "content": "  be <brief> & kind  "},
    {"role": "user", "content": 'wie spät\nist es, "jetzt"?'},
    {"role": "assistant", "content": "<think>tja</think> Zehn nach neun."},
    {"role": "user", "content": "und morgen"},
    {"role": "assistant", "content": "genau so"},
]
EACH = "{% for m in messages %}"
END = "{% endfor %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
TEMPLATES = {
    "chatml": f"{EACH}{TURN}{END}{ASKS}",
    "bos and eos": "{{ bos_token }}" + EACH + "{{ m['content'] + eos_token }}" + END,
    "white space around blocks": "{% for m in messages %}\n    {% if true %}\n  {{ m.content }}\n"
    "    {% endif %}\n{% endfor %}\n",
    "minus signs": "{%- for m in messages -%}\n  {{- m.content -}}\n {%- endfor -%}",
    "namespace": "{% set ns = namespace(last=-1) %}" + EACH + "{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}" + END + "{{ ns.last }}",
    "reverse slice": "{% for m in messages[::-1] %}{{ loop.index }}{{ m.content }}" + END,
    "string methods": EACH + "{{ m.content.strip().split('>')[-1].lstrip('\\n') }}"
    "{% if m.content.startswith('<think>') %}!{% endif %}" + END,
    "thoughts dropped": EACH + "{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}" + END,
    "macro": "{% macro turn(m, mark='#') %}{{ mark }}{{ m.role }}:{{ m.content }}{% endmacro %}"
    + EACH
    + "{{ turn(m) }}{{ turn(m, mark='$') }}"
    + END,
    "items": "{% for k, v in messages[0].items() %}{{ k }}={{ v }};" + END,
    "selectattr": "{{ (messages | selectattr('role', 'equalto', 'system') | list)[0].content }}",
    "rejectattr and map": "{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role')"
    " | join(',') }}",
    "loop variables": EACH + "{% if loop.previtem is defined %}{{ loop.previtem.role }}{% endif %}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }}" + END,
    "tests": EACH + "{{ m is mapping }}{{ m.content is string }}{{ m.content is iterable }}"
    "{{ m.tool_calls is defined }}{{ none is none }}" + END,
    "get and default": EACH + "{{ m.get('name', '-') }}{{ m.name | default('~') }}" + END,
    "trim and length": EACH + "{{ m.content | trim }}{{ m.content | length }}" + END,
    "set block": "{% set text %}{{ messages[0].content }}!{% endset %}{{ text | upper }}",
    "break and continue": EACH + "{% if m.role == 'user' %}{% continue %}{% endif %}"
    "{{ m.content }}{% if loop.index > 2 %}{% break %}{% endif %}" + END,
    "tojson": EACH + "{{ m | tojson }}{{ {'b': 1, 'a': 'é<&\\''} | tojson(indent=2) }}" + END,
    "tools is defined": "{{ tools is defined }}{{ documents is defined }}{{ tools is none }}"
    "{% if not tools %}none{% endif %}",
    "day": "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}",
    "dict": "{% set d = dict(a=1) %}{{ d.a }}{{ dict([('b', 2)]).b }}",
    "system or none": "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{{ m.content }}" + END,
    "alternation": "{% for m in messages[1:] %}{% if (m.role == 'user') != (loop.index0 % 2 == 0)"
    " %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}" + END,
    "inline conditions": EACH
    + "{{ 'A: ' if m.role == 'assistant' else 'U: ' }}{{ m.content }}\n"
    + END
    + "{{ 'A:' if add_generation_prompt else '' }}",
}
SAID = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
IF_SAID = "{% if m.role == 'assistant' %}"
OTHERS = "{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
MARKED = {
    "plain": EACH + "<|im_start|>{{ m.role }}\n" + IF_SAID + SAID + OTHERS + END + ASKS,
    "minus signs": EACH + "<|im_start|>{{ m.role }}\n" + IF_SAID + "{%- generation -%} "
    "{{ m.content }}<|im_end|> {%- endgeneration -%}" + OTHERS + END,
    "no line behind the role": EACH + "{{ m.role }}:" + IF_SAID + SAID + OTHERS + END,
    "a blank before": EACH + "{{ m.role }}: " + IF_SAID + SAID + OTHERS + END,
    "all that a loop writes": EACH + IF_SAID + "{% generation %}{% for w in m.content.split(' ') %}"
    "{{ w }} {% endfor %}<|im_end|>{% endgeneration %}" + OTHERS + END,
}
