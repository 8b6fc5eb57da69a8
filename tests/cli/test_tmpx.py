def test_x(trained_run):
    import shutil
    shutil.rmtree("/tmp/run", ignore_errors=True)
    shutil.copytree(trained_run, "/tmp/run")
