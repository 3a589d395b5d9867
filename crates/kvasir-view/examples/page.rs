//! Renders a data object from stdin as a page on stdout, to develop the viewer alone.

fn main() -> std::io::Result<()> {
    let data = std::io::read_to_string(std::io::stdin())?;
    println!("{}", kvasir_view::page("Kvasir", &data));
    Ok(())
}
