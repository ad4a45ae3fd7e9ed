"""Where ranks are started and watched."""
