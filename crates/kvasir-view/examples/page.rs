//! Turns a data object on stdin into a page on stdout, for work on the drawing alone.

fn main() -> std::io::Result<()> {
    let data = std::io::read_to_string(std::io::stdin())?;
    println!("{}", kvasir_view::page("Kvasir", &data));
    Ok(())
}
