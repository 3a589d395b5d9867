//! Where the values (activations) of a program lie in the executor's buffers.

use crate::exec::run::Run;
use crate::memory::buffer::Buffer;
use kvasir_program::{Rows, ValueId};

impl Run<'_> {
    /// Numbers per row of a value.
    pub(crate) fn width(&self, value: ValueId) -> usize {
        self.model.program.value(value).width()
    }

    /// Rows of a value in this step: one per token, or one per sampled token.
    pub(crate) fn rows(&self, value: ValueId) -> usize {
        if self.model.program.value(value).rows == Rows::Tokens {
            self.tokens.len()
        } else {
            self.sampled.len()
        }
    }

    /// Address of a value's rows, and how many numbers they have.
    fn place(&self, values: &[Buffer], value: ValueId) -> (*mut f32, usize) {
        let Some(buffer) = self.model.lowered.buffers.of_value[value.0 as usize] else {
            return (std::ptr::dangling_mut(), 0);
        };
        let len = self.rows(value) * self.width(value);
        assert!(len * 4 <= values[buffer].len(), "a buffer is as large as the largest step needs");
        (values[buffer].ptr().cast_mut().cast(), len)
    }

    /// A value's rows, contiguous.
    pub(crate) fn value<'m>(&self, values: &'m [Buffer], value: ValueId) -> &'m [f32] {
        let (at, len) = self.place(values, value);
        // SAFETY: that many numbers are in the buffer; any bytes are floats.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// An output value's rows, to be written.
    ///
    /// # Safety
    /// No other reference to the value's buffer may be alive. The buffer plan never gives an output
    /// the buffer of one of its operands.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn value_mut<'m>(&self, values: &'m [Buffer], value: ValueId) -> &'m mut [f32] {
        let (at, len) = self.place(values, value);
        // SAFETY: as for reading; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }
}
