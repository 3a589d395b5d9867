use kvasir::Loaded;

/// What the options depend on.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The model's longest sequence.
    pub(crate) max_model_len: u32,
    /// Slots that a share of the memory holds.
    pub(crate) slots: u32,
    /// Windows of the model's layers.
    pub(crate) windows: Vec<u32>,
    /// Whether the backend is a CPU.
    pub(crate) is_cpu: bool,
    /// Whether nothing is computed, so that sequences may go where the model has no positions.
    pub(crate) is_simulated: bool,
}

impl Facts {
    /// Of a model that a CPU runs.
    pub(crate) fn of(model: &Loaded, slots: u32) -> Self {
        let program = model.program();
        let max_model_len = u32::try_from(program.max_positions).unwrap_or(u32::MAX);
        Self {
            max_model_len,
            slots,
            windows: program.windows(),
            is_cpu: true,
            is_simulated: model.backend() == "sim",
        }
    }
}
