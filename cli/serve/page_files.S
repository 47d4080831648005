/* page_files.S - puts the files of the server's page into the program, read-only, as they are.
 *
 * The assembler finds them relative to the root of the tree. ELF only. */
    .macro file name, path
    .globl \name
    .type \name, %object
\name:
    .incbin "\path"
    .globl \name\()_end
    .type \name\()_end, %object
\name\()_end:
    .byte 0                              /* so that the label lies inside the section */
    .size \name, \name\()_end - \name
    .size \name\()_end, 1
    .endm

    .section .rodata.page_files, "a"
    file page_html, "cli/serve/page/index.html"
    file page_style, "cli/serve/page/style.css"
    file page_script, "cli/serve/page/app.js"
    .section .note.GNU-stack, "", %progbits
