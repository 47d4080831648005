/* demo_model.S - puts the demo model's file into the program, read-only, as it is.
 *
 * The assembler finds the file relative to the root of the tree. ELF only. */
    .section .rodata.demo_model, "a"
    .balign 64
    .globl demo_model_data
    .type demo_model_data, %object
demo_model_data:
    .incbin "tests/models/demo-qwen3next-mtp.gguf"
    .globl demo_model_end
    .type demo_model_end, %object
demo_model_end:
    .byte 0                              /* so that the label lies inside the section */
    .size demo_model_data, demo_model_end - demo_model_data
    .size demo_model_end, 1
    .section .note.GNU-stack, "", %progbits
