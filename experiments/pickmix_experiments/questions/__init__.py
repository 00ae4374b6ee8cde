"""Questions of `pickmix bench all`, a module each: settings, and what is measured on each."""
