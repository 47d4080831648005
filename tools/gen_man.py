#!/usr/bin/env python3
"""gen_man.py BUILD FOLDER - writes the man pages of the programs in BUILD into FOLDER.

A page is what --help prints, and the few sections below that --help does not have. An option that
several verbs share in a group (Sampling, Memory) is described once. make install runs this."""
import os
import re
import subprocess
import sys

NAMES = {'moe-run': 'run big Mixture-of-Experts language models from GGUF files',
         'moe-serve': 'serve a Mixture-of-Experts model over HTTP',
         'moe-bench': 'measure a Mixture-of-Experts model on this machine',
         'moe-quant': 'write a GGUF model file with its weights in other types'}
WITH_VERBS = 'moe-run', 'moe-bench'
MODELS = '''A model is the path of a GGUF file, or a name of moe-run models after moe-run pull has downloaded it.
Sizes are in powers of 1024, e.g. 512M or 20G. A name in brackets after an option is an environment
variable that sets it; the option takes precedence.'''
FILES = [('~/.local/share/moe/models', 'Models that moe-run pull downloaded ($XDG_DATA_HOME/moe/models, $MOE_MODELS).'),
         ('~/.cache/moe', 'Measured speeds of this machine, experts of the last run, and in prompts the '
          'states of long prompts ($XDG_CACHE_HOME/moe).'),
         ('~/.local/state/moe-run/history', 'Lines typed in moe-run chat.'),
         ('PREFIX/share/moe/models.txt', 'Public model files, for moe-run models and pull.')]
OPTION = re.compile(r'^  (?:(-\w), |    )--([a-z0-9-]+)(?: (\S+))? +(.*)$')


def help_of(*command):
    return subprocess.run([*command, '--help'], stdout=subprocess.PIPE, check=True,
                          text=True).stdout.splitlines()


def roff(text):
    text = text.replace('\\', '\\e').replace('-', '\\-')
    return '\\&' + text if text[:1] in ".'" else text


def verbs_of(lines):
    """Names and descriptions: the lines before the first empty one."""
    rows = [re.match(r'^  ([a-z]+) +(\S.*)$', line) for line in lines[:lines.index('')]]
    return [row.groups() for row in rows if row]


def parse(lines):
    """usage, about, groups {title: options} ('': without a title), what follows them."""
    usage = lines[0].removeprefix('Usage: ')
    about, groups, after, title, i = [], {}, [], '', 1
    while i < len(lines) and not OPTION.match(lines[i]) and lines[i + 1:i + 2] and not (
            lines[i].endswith(':') and OPTION.match(lines[i + 1])):
        about.append(lines[i])
        i += 1
    while i < len(lines):
        line, found = lines[i], OPTION.match(lines[i])
        if found:
            if found[2] != 'help':
                groups.setdefault(title, []).append(found.groups())
        elif i + 1 < len(lines) and OPTION.match(lines[i + 1]):
            title = line.rstrip(':')
        elif line.startswith('  ') and after and after[-1].startswith('Also understood:'):
            after[-1] += ' ' + line.strip()
        elif line or after:
            after.append(line)
        i += 1
    return usage, about, groups, after


def option_text(option):
    letter, name, value, text = option
    left = (f'\\fB{roff(letter)}\\fR, ' if letter else '') + f'\\fB{roff("--" + name)}\\fR'
    if value:
        left += f' \\fI{roff(value)}\\fR'
    return f'.TP\n{left}\n{roff(re.sub(" +", " ", text))}\n'


def paragraphs(lines):
    """Text as it is; lines that are indented or in columns keep their shape."""
    out, filled = '.PP\n', True
    for line in lines:
        as_is = line.startswith('  ') or '   ' in line
        if as_is and filled:
            out += '.PP\n.nf\n'
        elif not as_is and not filled:
            out += '.fi\n.PP\n'
        filled = not as_is
        out += roff(line) + '\n' if line else '.PP\n'
    return out + ('' if filled else '.fi\n')


def verb_sections(program, verbs):
    parsed = [(verb, *parse(help_of(program, verb))) for verb in verbs]
    shared = {}                          # options that at least two verbs have in a group
    for _, _, _, groups, _ in parsed:
        for title, options in groups.items():
            for o in options:
                users = sum(o[1] in [x[1] for x in p[3].get(title, [])] for p in parsed)
                if title and users > 1 and o[1] not in [x[1] for x in shared.get(title, [])]:
                    shared.setdefault(title, []).append(o)
    out = ''
    for verb, usage, about, groups, after in parsed:
        out += f'.SS {roff(verb)}\n.nf\n\\fB{roff(usage)}\\fR\n.fi\n' + paragraphs(about)
        for title, options in groups.items():
            common = [x[1] for x in shared.get(title, [])]
            out += ''.join(option_text(o) for o in options if o[1] not in common)
        titles = [roff(t.split(' (')[0]) for t in groups if t in shared]
        if titles:
            out += '.PP\nAnd options of ' + ', '.join(f'\\fI{t}\\fR' for t in titles) + ', below.\n'
        out += paragraphs(after[:after.index('Examples:')] if 'Examples:' in after else after)
    for title, options in shared.items():
        out += f'.SS {roff(title)}\n' + ''.join(map(option_text, options))
    return out


def page(name, program):
    lines = help_of(program)
    out = f'.TH {name.upper()} 1 "" "moe" "User Commands"\n.SH NAME\n{name} \\- {NAMES[name]}\n'
    out += f'.SH SYNOPSIS\n\\fB{roff(lines[0].removeprefix("Usage: "))}\\fR\n.SH DESCRIPTION\n'
    base = [(None, 'help', None, 'Print help.'), ('-V', 'version', None, 'Print version and machine.')]
    base[0] = ('-h', *base[0][1:])
    if name in WITH_VERBS:
        verbs = verbs_of(lines)
        out += f'{roff(lines[1])}\n.PP\n{roff(MODELS)}\n.SH VERBS AND OPTIONS\n'
        out += ''.join(map(option_text, base)) + verb_sections(program, [v for v, _ in verbs])
        after = lines[lines.index('Examples:'):]
    else:
        _, about, groups, after = parse(lines)
        out += paragraphs(about) + f'.PP\n{roff(MODELS)}\n.SH OPTIONS\n' + ''.join(map(option_text, base))
        for title, options in groups.items():
            out += (f'.SS {roff(title)}\n' if title else '') + ''.join(map(option_text, options))
    out += '.SH NOTES\n' + paragraphs(after) + '.SH FILES\n'
    out += ''.join(f'.TP\n\\fI{roff(path)}\\fR\n{roff(text)}\n' for path, text in FILES)
    others = [f'.BR {n} (1)' for n in NAMES if n != name]
    return out + '.SH SEE ALSO\n' + ',\n'.join(others) + '\n'


def main():
    build, folder = sys.argv[1:]
    for name in NAMES:
        if os.path.exists(f'{build}/{name}'):
            with open(f'{folder}/{name}.1', 'w') as f:
                f.write(page(name, f'{build}/{name}'))


main()
