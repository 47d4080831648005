#!/usr/bin/env python3
# terminal_emulator.py ROWS COLUMNS PROGRAM ARG... - runs a program in a terminal of that size and prints what a
# person would find on it afterwards, lines that scrolled away included. stdin is empty.
# With --raw before ROWS: the bytes instead, as they came. With --until TEXT before ROWS: Ctrl-C when
# that text has come.
#
# Knows the sequences that the programs use, and stops at any other: an unknown one is a finding.
import fcntl, os, pty, re, signal, struct, sys, termios, unicodedata

args, until = sys.argv[1:], None
raw = args[0] == "--raw"
if raw: args = args[1:]
if args[0] == "--until": until, args = args[1].encode(), args[2:]
rows, cols, argv = int(args[0]), int(args[1]), args[2:]
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
    os.environ["TERM"] = "xterm"
    signal.signal(signal.SIGINT, signal.SIG_DFL)     # a background job ignores it
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.execvp(argv[0], argv)
data = b""
while True:
    try: piece = os.read(fd, 65536)
    except OSError: break
    if not piece: break
    data += piece
    if until and until in data:
        os.write(fd, b"\x03")
        until = None
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if raw:
    sys.stdout.buffer.write(data)
    sys.exit(code)

screen, r, c, saved = [[]], 0, 0, (0, 0)
top = 0                                  # first row of the screen among all lines
def line_at(r):
    while len(screen) <= r: screen.append([])
    return screen[r]
def down():
    global r, top
    r += 1
    line_at(r)
    if r - top >= rows: top = r - rows + 1
def put(ch):
    global r, c
    wide = 2 if unicodedata.east_asian_width(ch) in "WF" else 1
    if unicodedata.combining(ch): return
    if c + wide > cols:                  # the terminal's own break
        down()
        c = 0
    line = line_at(r)
    line.extend([" "] * (c + wide - len(line)))
    line[c] = ch
    if wide == 2: line[c + 1] = ""
    c += wide

text, i = data.decode("utf8"), 0
while i < len(text):
    ch = text[i]
    m = re.compile("\x1b(\\[([0-9]*)([A-Za-z])|[D78])").match(text, i)
    if m:
        kind, i = m.group(3) or m.group(1), m.end()
        if kind == "D": down()
        elif kind == "A": r = max(top, r - 1)
        elif kind == "K": del line_at(r)[c:]
        elif kind == "J": del line_at(r)[c:]; del screen[r + 1:]
        elif kind == "7": saved = (r - top, c)
        elif kind == "8": r, c = top + saved[0], saved[1]
        elif kind != "m": sys.exit("unknown sequence: %r" % m.group(0))
        continue
    if ch == "\x1b": sys.exit("unknown sequence: %r" % text[i:i + 8])
    if ch == "\r": c = 0
    elif ch == "\n": down()
    elif ch == "\t": c = min((c // 8 + 1) * 8, cols - 1)
    else: put(ch)
    i += 1
print("\n".join("".join(line).rstrip() for line in screen).rstrip("\n"))
sys.exit(code)
