//! `kvasir replay`: runs recorded conformance cases against caches and policies.

use crate::io::failure::Failure;
use kvasir_conformance::{Outcome, Report, Suite};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Case files (`{"format": "kvasir-conformance/1", ..}`)
    #[arg(required = true, value_name = "CASES.json")]
    files: Vec<PathBuf>,
    /// Run only the case with this id
    #[arg(long, value_name = "ID")]
    case: Option<String>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let (mut reports, mut invalid) = (Vec::new(), None);
        for path in &self.files {
            let name = |e| Failure::usage(format!("{}: {e}", path.display()));
            let suite = Suite::parse(&Failure::read(path)?).map_err(name)?;
            let ran = kvasir_conformance::run(&suite, self.case.as_deref()).map_err(name)?;
            invalid = invalid.or_else(|| {
                ran.iter().find_map(|report| match &report.outcome {
                    Outcome::Invalid { why } => {
                        Some(format!("{}: case {}: {why}", path.display(), report.id))
                    }
                    _ => None,
                })
            });
            reports.extend(ran);
        }
        if let Some(id) = self.case.as_ref().filter(|_| reports.is_empty()) {
            return Err(Failure::usage(format!("--case {id}: none of the files has this case")));
        }
        let count =
            |wanted: fn(&Outcome) -> bool| reports.iter().filter(|report| wanted(&report.outcome)).count();
        let passed = count(|o| matches!(o, Outcome::Passed));
        let failed = count(|o| matches!(o, Outcome::Failed(_) | Outcome::Invalid { .. }));
        let skipped = count(|o| matches!(o, Outcome::Skipped { .. }));
        if self.json {
            let all = serde_json::json!({
                "passed": passed, "failed": failed, "skipped": skipped, "cases": reports,
            });
            println!("{all}");
        } else {
            reports.iter().for_each(print_line);
            println!("{passed} passed, {failed} failed, {skipped} skipped");
        }
        match invalid {
            Some(why) => Err(Failure::usage(why)),
            None if failed > 0 => Ok(ExitCode::FAILURE),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

fn print_line(report: &Report) {
    match &report.outcome {
        Outcome::Passed => {}
        Outcome::Failed(m) => println!("FAIL {}: {} expected {} got {}", report.id, m.at, m.expected, m.got),
        Outcome::Invalid { why } => println!("FAIL {}: {why}", report.id),
        Outcome::Skipped { reason } => println!("skip {}: {reason}", report.id),
    }
}
