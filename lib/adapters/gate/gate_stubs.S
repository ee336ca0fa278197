/* SPDX-License-Identifier: MIT */
/* gate_stubs.S: a function for each name of gate_names.h, and as many without a name as gate.h says: each puts its
 * number into a scratch register and goes on below, which calls the driver's function with whatever arguments it was
 * called with.
 *
 * Arguments on the stack must lie where they are, so the return address makes room for another one.  It stays in a
 * register that functions keep, whose value lies in the thread's `weir__gate_frame'; so a backtrace finds the way
 * (but not that register's value).  A thread that is inside already is not counted again: it goes on at once. */
#include "adapters/gate/gate.h"
#include "adapters/gate/gate_names.h"

#define NAMED(name) named name;

    .section .note.GNU-stack,"",%progbits
    .text

#if defined(__x86_64__)

    .macro stub
    .p2align 4
    endbr64
    movl $number, %r11d
    jmp passage
    .set number, number + 1
    .endm

    .p2align 4
    .type passage, %function
passage:
    .cfi_startproc
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    pushq %r8
    .cfi_adjust_cfa_offset 8
    pushq %r9
    .cfi_adjust_cfa_offset 8
    pushq %rax
    .cfi_adjust_cfa_offset 8
    subq $128, %rsp
    .cfi_adjust_cfa_offset 128
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movl %r11d, %edi
    call weir__gate_pass
    movq %rax, %r11
    movq %rdx, %r10
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    .cfi_adjust_cfa_offset -128
    popq %rax
    .cfi_adjust_cfa_offset -8
    popq %r9
    .cfi_adjust_cfa_offset -8
    popq %r8
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %r10, %r10
    jnz 1f
    jmp *%r11
1:  movq %rbx, (%r10)
    .cfi_undefined rbx
    popq %rbx
    .cfi_def_cfa_offset 0
    .cfi_register rip, rbx
    call *%r11
    pushq %rbx
    .cfi_def_cfa_offset 8
    .cfi_offset rip, -8
    pushq %rax
    .cfi_adjust_cfa_offset 8
    call weir__gate_come_back
    movq (%rax), %rbx
    .cfi_same_value rbx
    popq %rax
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size passage, . - passage

#elif defined(__aarch64__)

    .macro stub
    .p2align 4
    hint 34 /* bti c */
    mov w17, #number
    b passage
    .set number, number + 1
    .endm

    .p2align 4
    .type passage, %function
passage:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl weir__gate_pass
    mov x16, x0
    mov x17, x1
    ldp q6, q7, [sp, #192]
    ldp q4, q5, [sp, #160]
    ldp q2, q3, [sp, #128]
    ldp q0, q1, [sp, #96]
    ldr x8, [sp, #80]
    ldp x6, x7, [sp, #64]
    ldp x4, x5, [sp, #48]
    ldp x2, x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #224
    .cfi_adjust_cfa_offset -224
    .cfi_restore x29
    .cfi_restore x30
    cbnz x17, 1f
    br x16
1:  str x19, [x17]
    .cfi_undefined x19
    mov x19, x30
    .cfi_register x30, x19
    blr x16
    str x0, [sp, #-16]!
    .cfi_adjust_cfa_offset 16
    bl weir__gate_come_back
    mov x30, x19
    .cfi_same_value x30
    ldr x19, [x0]
    .cfi_same_value x19
    ldr x0, [sp], #16
    .cfi_adjust_cfa_offset -16
    ret
    .cfi_endproc
    .size passage, . - passage

#else
#error "the gate knows x86-64 and AArch64"
#endif

    .macro named name
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    stub
    .size \name, . - \name
    .endm

    .hidden weir__gate_pass
    .hidden weir__gate_come_back
    .set number, 0
    .p2align 4
    WEIR_GATE_NAMES(NAMED)

    .globl weir__gate_stubs
    .hidden weir__gate_stubs
    .type weir__gate_stubs, %function
    .p2align 4
weir__gate_stubs:
    .rept WEIR_GATE_FOUND
    stub
    .endr
    .size weir__gate_stubs, . - weir__gate_stubs
