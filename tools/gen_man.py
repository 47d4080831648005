#!/usr/bin/env python3
"""gen_man.py BUILD - writes what --help says about options into packaging/*.1.

    make all && tools/gen_man.py build-cpu

Only the lines between the two marks in a page are replaced; the rest is written by hand. An option
that several verbs share in a group (Sampling, Memory) is told once. tests/test_packaging.sh fails
when a page and --help differ."""
import re
import subprocess
import sys

BEGIN = '.\\" ---- from here on by tools/gen_man.py\n'
END = '.\\" ---- to here\n'
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
    """usage, about, the verb's own options, its groups, what follows them."""
    usage = lines[0].removeprefix('Usage: ')
    about, own, groups, after = [], [], [], []
    options, at = own, 1
    while at < len(lines) and not OPTION.match(lines[at]):
        about.append(lines[at])
        at += 1
    while at < len(lines):
        line, found = lines[at], OPTION.match(lines[at])
        if found:
            if found[2] != 'help':
                options.append(found.groups())
        elif at + 1 < len(lines) and OPTION.match(lines[at + 1]):
            options = []
            groups.append((line.rstrip(':'), options))
        elif line.startswith('  ') and after and after[-1].startswith('Also understood:'):
            after[-1] += ' ' + line.strip()
        elif line or after:
            after.append(line)
        at += 1
    return usage, about, own, groups, after


def option_text(option):
    letter, name, value, text = option
    left = (f'\\fB{roff(letter)}\\fR, ' if letter else '') + f'\\fB{roff("--" + name)}\\fR'
    if value:
        left += f' \\fI{roff(value)}\\fR'
    return f'.TP\n{left}\n{roff(re.sub(" +", " ", text))}\n'


def paragraphs(lines):
    """Text as it is; lines that are indented or in columns keep their shape."""
    out, filled = '', True
    for line in lines:
        as_is = line.startswith('  ') or '   ' in line
        if as_is and filled:
            out += '.PP\n.nf\n'
        elif not as_is and not filled:
            out += '.fi\n.PP\n'
        filled = not as_is
        out += roff(line) + '\n' if line else '.PP\n'
    return out + ('' if filled else '.fi\n')


def page(program, verbs):
    out, shared = '', {}
    sections = []
    for verb, text in verbs:
        command = [program, *verb.split()]
        usage, about, own, groups, after = parse(help_of(*command))
        titles = [title for title, _ in groups]
        for title, options in groups:
            known = shared.setdefault(title, [])
            known += [o for o in options if o[1] not in [k[1] for k in known]]
        sections.append((verb, text, usage, about, own, titles, after))
    for verb, text, usage, about, own, titles, after in sections:
        out += f'.SS {roff(verb)}\n' if verb else ''
        out += f'.nf\n\\fB{roff(usage)}\\fR\n.fi\n.PP\n' if verb else ''
        out += paragraphs(about) if verb else ''
        out += ''.join(map(option_text, own))
        if titles:
            names = ', '.join('\\fI' + roff(t.split(' (')[0]) + '\\fR' for t in titles)
            out += f'.PP\nAnd those of {names}, below.\n'
        if verb:
            after = after[:after.index('Examples:')] if 'Examples:' in after else after
            out += '.PP\n' + paragraphs(after) if after else ''
    for title, options in shared.items():
        out += f'.SS {roff(title)}\n' + ''.join(map(option_text, options))
    return out


def main():
    build = sys.argv[1]
    for name in 'moe-run', 'moe-bench', 'moe-quant', 'moe-serve':
        program, path = f'{build}/{name}', f'packaging/{name}.1'
        lines = help_of(program)
        verbs = verbs_of(lines) if name in ('moe-run', 'moe-bench') else [('', '')]
        text = open(path).read()
        head, rest = text.split(BEGIN)
        tail = rest.split(END)[1]
        open(path, 'w').write(head + BEGIN + page(program, verbs) + END + tail)


main()
