"""A session and its versions to the text a model sees; every assembly is recorded and can be rendered again."""
