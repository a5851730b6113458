"""What each view of a page is drawn from; `assets/views` has the module of the same name that draws it."""
